"""What is read while it churns: sizes, dead rows, and the time that a trip takes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

from django.conf import settings
from django.db import connection, connections
from django.test import override_settings

from dispatcher import ending
from dispatcher.lifecycle import heartbeat
from dispatcher.lifecycle.finish import Ended
from dispatcher.lifecycle.take import Start, take
from dispatcher.models import CallQueue, Slot
from dispatcher.states import DUE, State
from trials import notes
from trials.soak import fixtures
from trials.soak.verdict import Reading

EACH = 3
"""Calls that a measured trip starts of each lane."""
IDLE = "idle"
"""The database without a churn."""
PERIOD_S = 0.5
"""How often a trip is measured."""
_HEARTBEAT_S = 10.0
_TIDY_EVERY = 10


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What was read at one moment."""

    at: float
    bytes: dict[str, int]
    dead: dict[str, int]
    deleted: dict[str, int]
    vacuums: dict[str, int]
    horizon: int
    """Transactions since the oldest snapshot that somebody looks at."""


@dataclass(frozen=True, kw_only=True)
class Trips:
    """The milliseconds of two trips over as many calls, one after the other."""

    busy: float
    idle: float


@dataclass(kw_only=True)
class Gauges:
    """The measuring side: a trip and a sample every half second, for as long as it is asked to look."""

    notes: Path
    """Where the traffic writes what it does."""
    here: heartbeat.WorkerInfo
    """The worker that this process plays."""
    full: heartbeat.ReservedCall
    """The call that holds the room of `full`."""
    beaten_at: float = field(default_factory=monotonic)

    turn: int = 0

    def watch(self, label: str, seconds: float) -> Reading:
        """Look for so long, and return the worst sizes and dead rows, and the times of the trips and the sends."""
        began = monotonic()
        samples: list[Sample] = []
        trips: list[Trips] = []
        while (now := monotonic()) < began + seconds:
            if (took := self.step()) is not None:
                trips.append(took)
            samples.append(sample())
            sleep(max(now + PERIOD_S - monotonic(), 0))
        return _reading(label, samples, trips, self._noted(began, monotonic()))

    def pass_time(self, until: float) -> None:
        """Let time pass until a monotonic time, measured trips included: they are part of the churn."""
        while (now := monotonic()) < until:
            self.step()
            sleep(max(now + PERIOD_S - monotonic(), 0))

    def step(self) -> "Trips | None":
        """Measure a trip beside the churn and one in the idle database; keep the standing call."""
        if monotonic() > self.beaten_at + _HEARTBEAT_S:
            fixtures.keep(self.here, self.full)
            with on_idle():
                heartbeat.record(self.here, [])
            self.beaten_at = monotonic()
        self.turn += 1
        # In turns, so that neither always comes first.
        order = (busy_trip, idle_trip) if self.turn % 2 else (idle_trip, busy_trip)
        times = {measure: measure(self.here) for measure in order}
        if self.turn % _TIDY_EVERY == 0:
            with connections[IDLE].cursor() as cursor:
                cursor.execute(_statement("tidy"))
        busy, idle = times[busy_trip], times[idle_trip]
        return None if busy is None or idle is None else Trips(busy=busy, idle=idle)

    def _noted(self, since: float, until: float) -> list[dict[str, Any]]:
        return [line for line in notes.read(self.notes) if since <= line["at"] <= until]


def idle_trip(here: heartbeat.WorkerInfo) -> float | None:
    """Measure the same trip in the idle database, and forget its calls."""
    with on_idle():
        took = busy_trip(here)
    for model in (Slot, CallQueue):
        model.objects.using(IDLE).all().delete()
    return took


@contextmanager
def on_idle() -> Iterator[None]:
    """Let the dispatcher use the idle database."""
    with override_settings(DISPATCHER={**settings.DISPATCHER, "database": IDLE}):
        yield


def busy_trip(here: heartbeat.WorkerInfo) -> float | None:
    """Let calls wait in lanes of their own, and measure the milliseconds of the trip that starts all of them.

    Always as many of as many lanes, under the key that all that moves spends; then their ends are recorded. None if the
    trip left some, as where another one had a key locked.
    """
    fixtures.write(fixtures.probe_calls(EACH))
    taker = fixtures.taker(here)
    began = monotonic()
    starts = take(taker, room=EACH * fixtures.PROBES).starts
    took = (monotonic() - began) * 1_000
    take(taker, [_completed(start) for start in starts])
    return took if len(starts) == EACH * fixtures.PROBES else None


def _completed(start: Start) -> Ended:
    ticket = start.call.ticket
    return Ended(call_id=start.call.id, ticket=ticket, claim_id=ticket, ending=ending.completed(None))


def sample() -> Sample:
    """Read all gauges once."""
    sizes, tables = _rows("relations"), _rows("tables")
    columns = ("dead", "deleted", "vacuums")
    counted = {column: {row["name"]: row[column] for row in tables} for column in columns}
    (horizon,) = _rows("horizon")
    return Sample(at=monotonic(), bytes={row["name"]: row["bytes"] for row in sizes}, horizon=horizon["age"], **counted)


def _reading(label: str, samples: Sequence[Sample], trips: Sequence[Trips], noted: Sequence[dict[str, Any]]) -> Reading:
    first, last = samples[0], samples[-1]
    seconds = last.at - first.at
    sends = [took for line in noted for took in line.get("send_ms", [])]
    # Those of the worker, and of the measured trips.
    ended = sum(line["what"] == "end" for line in noted) + len(trips) * EACH * fixtures.PROBES
    return Reading(
        label=label,
        seconds=seconds,
        bytes={name: max(each.bytes[name] for each in samples) for name in last.bytes},
        dead={name: max(each.dead[name] for each in samples) for name in last.dead},
        trip_ms=median(each.busy for each in trips),
        worst_trip_ms=max(each.busy for each in trips),
        idle_trip_ms=median(each.idle for each in trips),
        trip_ratio=median(each.busy / each.idle for each in trips),
        send_ms=median(sends),
        rate=ended / seconds,
        waiting=CallQueue.objects.filter(state__in=[State.AVAILABLE, *DUE]).count(),
        horizon=max(each.horizon for each in samples),
    )


def _rows(name: str) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(_statement(name))
        columns = [column.name for column in cursor.description]
        return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]


def _statement(name: str) -> str:
    return resources.files("trials.soak.sql").joinpath(f"{name}.sql").read_text("utf-8")
