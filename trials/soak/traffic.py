"""What churns: threads that send, tick, recover and clean up, each on its own connection. A worker runs the calls."""

import json
import logging
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from threading import Event, Thread
from time import monotonic

from django.db import DatabaseError, connection

from dispatcher import api, engine
from trials.soak import fixtures

logger = logging.getLogger(__name__)

BURST = 10
"""Calls per second that are sent at once to a key with room for two."""
SLOW = 5
"""Calls per second that are sent at once to a key with a throttle of twice as many."""
CLEANUP_S = 2.0
RECOVERY_S = 10.0

_LATE_S = 1.0


def churn(rate: float, notes: Path, stopping: Event) -> None:
    """Churn at so many calls per second, and note every second how long the sends took."""
    send_ms: list[float] = []
    alone = rate - BURST - SLOW
    work: list[Callable[[], None]] = [
        lambda: _send(alone, send_ms, stopping),
        lambda: _every(1.0, _send_bursts, stopping),
        lambda: _every(1.0, engine.tick, stopping),
        lambda: _every(RECOVERY_S, engine.recover, stopping),
        lambda: _every(CLEANUP_S, engine.cleanup, stopping),
    ]
    threads = [Thread(target=_on_a_connection, args=(job,), daemon=True) for job in work]
    for thread in threads:
        thread.start()
    with notes.open("a", buffering=1) as file:
        while not stopping.wait(1.0):
            noted = send_ms.copy()
            del send_ms[: len(noted)]
            file.write(json.dumps({"at": monotonic(), "ended": 0, "send_ms": noted}) + "\n")
    for thread in threads:
        thread.join(timeout=5.0)


def _on_a_connection(job: Callable[[], None]) -> None:
    try:
        job()
    finally:
        connection.close()


def _turns(period: float, stopping: Event) -> Iterator[int]:
    """Yield once a period. A turn that is a little late is made up for; what a longer halt cost is not: no bursts."""
    due = monotonic()
    for turn in count():
        if stopping.wait(max(due - monotonic(), 0)):
            return
        yield turn
        due = max(due + period, monotonic() - _LATE_S)


def _every(period: float, action: Callable[[], object], stopping: Event) -> None:
    for _ in _turns(period, stopping):
        try:
            action()
        except DatabaseError:
            logger.exception("it is tried again at the next turn")


def _send(rate: float, send_ms: list[float], stopping: Event) -> None:
    """Send calls one by one: those that find room are dispatched at once."""
    for turn in _turns(1 / rate, stopping):
        began = monotonic()
        api.send_many([fixtures.call("api", f"tenant:{turn % fixtures.TENANTS}")])
        send_ms.append((monotonic() - began) * 1_000)


def _send_bursts() -> None:
    """Send calls that wait, and are let in one by one: by an end, and by time."""
    api.send_many([fixtures.call("api", "narrow")] * BURST + [fixtures.call("slow")] * SLOW)
