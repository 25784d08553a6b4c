"""What churns: threads that send, dispense, work, beat and clean up, each on a connection of its own.

They drive the engine as Celery's processes do, with less noise: beside what is measured, two cores must do.
"""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any
from uuid import UUID

from celery import current_app
from django.db import DatabaseError, connection
from kombu.entity import Queue

from dispatcher import api, engine
from dispatcher.lifecycle import heartbeat
from dispatcher.messages.tickets import TICKET_HEADER
from trials.soak import fixtures, tasks

logger = logging.getLogger(__name__)

WORKERS = 6
BURST = 10
"""Calls per second that are sent at once to a key with room for two."""
SLOW = 5
"""Calls per second that are sent at once to a key with a throttle of twice as many."""
HEARTBEAT_S = 5.0
CLEANUP_S = 2.0
RECOVERY_S = 10.0

_LATE_S = 1.0


@dataclass(kw_only=True)
class Tally:
    """What the threads did since the last note."""

    sent: int = 0
    ended: int = 0
    send_ms: list[float] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def count(self, *, sent: int = 0, ended: int = 0, send_ms: float | None = None) -> None:
        """Add to it."""
        with self.lock:
            self.sent += sent
            self.ended += ended
            if send_ms is not None:
                self.send_ms.append(send_ms)

    def take(self) -> dict[str, Any]:
        """Return what was counted, and start again from zero."""
        with self.lock:
            taken = {"at": monotonic(), "sent": self.sent, "ended": self.ended, "send_ms": self.send_ms}
            self.sent, self.ended, self.send_ms = 0, 0, []
        return taken


def churn(rate: float, notes: Path, stopping: Event) -> None:
    """Churn at so many calls per second, and note every second what was done."""
    tally, held = Tally(), Held()
    alone = rate - BURST - SLOW
    work: list[Callable[[], None]] = [
        lambda: _send(alone, tally, stopping),
        lambda: _every(1.0, lambda: _send_bursts(tally), stopping),
        lambda: _every(1.0, engine.tick, stopping),
        lambda: _every(RECOVERY_S, engine.recover, stopping),
        lambda: _every(CLEANUP_S, engine.cleanup, stopping),
    ]
    if not fixtures.IS_DIRECT:
        # Else a worker of Celery's runs the calls (see trials.soak.tasks).
        work += [lambda: _every(HEARTBEAT_S, held.beat, stopping), *[lambda: _work(held, tally, stopping)] * WORKERS]
    threads = [Thread(target=_on_a_connection, args=(job,), daemon=True) for job in work]
    for thread in threads:
        thread.start()
    with notes.open("a", buffering=1) as file:
        while not stopping.wait(1.0):
            file.write(json.dumps(tally.take()) + "\n")
    for thread in threads:
        thread.join(timeout=5.0)


class Held:
    """The calls that the workers run, for the heartbeat."""

    def __init__(self) -> None:
        self.here = fixtures.worker("churn")
        self.tickets: dict[UUID, UUID] = {}

    def beat(self) -> None:
        """Say that the workers live and hold these."""
        heartbeat.record(self.here, list(self.tickets.items()))


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


def _send(rate: float, tally: Tally, stopping: Event) -> None:
    """Send calls one by one: those that find room are dispatched at once."""
    for turn in _turns(1 / rate, stopping):
        began = monotonic()
        api.send_many([fixtures.call("api", f"tenant:{turn % fixtures.TENANTS}")])
        tally.count(sent=1, send_ms=(monotonic() - began) * 1_000)


def _send_bursts(tally: Tally) -> None:
    """Send calls that wait, and are let in one by one: by an end, and by time."""
    calls = [fixtures.call("api", "narrow")] * BURST + [fixtures.call("slow")] * SLOW
    tally.count(sent=len(api.send_many(calls)))


def _work(held: Held, tally: Tally, stopping: Event) -> None:
    """Take messages out, one after the other, and run them."""

    def run(message: Any) -> None:
        call_id, ticket = UUID(message.headers["id"]), UUID(message.headers[TICKET_HEADER])
        held.tickets[call_id] = ticket
        try:
            engine.execute(call_id, ticket, tasks.work, worker=held.here.id)
        finally:
            del held.tickets[call_id]
        tally.count(ended=1)

    with current_app.connection_for_read() as broker:
        queue = Queue(fixtures.QUEUE, channel=broker.default_channel)
        queue.declare()
        with broker.Consumer([queue], no_ack=True, prefetch_count=1, on_message=run):
            while not stopping.is_set():
                try:
                    broker.drain_events(timeout=1.0)
                except TimeoutError:
                    continue
