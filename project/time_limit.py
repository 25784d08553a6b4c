"""Give up on what takes too long: a figure, so that those after it are measured, or all of the demo."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 10.0
"""How long after the first interruption another one comes: the first may have been lost in a clean-up."""


class GaveUp(KeyboardInterrupt):
    """Raised in the main thread when the block has used up its time.

    As Ctrl-C: no code that logs a failure and goes on keeps it, and psycopg cancels the statement that runs.
    """


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise GaveUp in the block after so many seconds; only in the main thread, which no thread outlives."""

    def give_up(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        message = f"gave up after {seconds:g} s"
        raise GaveUp(message)

    handler_before = signal.signal(signal.SIGALRM, give_up)
    timer_before = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler_before)
        signal.setitimer(signal.ITIMER_REAL, *timer_before)
