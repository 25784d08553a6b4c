"""The third party of the benchmarks: the project's witness, in a thread of this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from project.witness.ledger import SECOND, Limits, Window
from project.witness.server import Witness

WINDOW = Window(limit=100, period=10 * SECOND)
THROTTLE = Window(limit=20, period=SECOND)
DIRECT = "direct:"
"""What the names of keys begin with whose calls are delivered directly."""


@contextmanager
def witness() -> Iterator[Witness]:
    """Let it listen, and put its address where tasks look for it."""
    limits = {
        f"{kind}{name}": limit
        for kind in ("", DIRECT)
        for name, limit in {"window": Limits(rate=WINDOW), "throttle": Limits(throttle=THROTTLE)}.items()
    }
    with Witness(limits) as server:
        os.environ["WITNESS_URL"] = server.url
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()
