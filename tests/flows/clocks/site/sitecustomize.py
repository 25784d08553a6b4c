"""Read by Python at its start in processes under libfaketime: give `time.sleep` a way that works there.

From 3.11 on it sleeps until a time of the monotonic clock. libfaketime 0.9.10 takes that for one of the clock that it
fakes, also where it is set to leave the monotonic one alone, and the sleep fails (wolfcw/libfaketime#426).
"""

import select
import time


def _sleep(seconds: float) -> None:
    if seconds < 0:
        message = "sleep length must be non-negative"
        raise ValueError(message)
    select.select((), (), (), seconds)


time.sleep = _sleep
