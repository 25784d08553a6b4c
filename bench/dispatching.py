"""What dispatching costs, and what it must not cost: the backlog, the lanes that sleep, the lanes that are parked."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

from django.utils import timezone

from bench import database, fixtures
from bench.figures import Bench, Bound, Figure, side_by_side
from dispatcher import engine
from dispatcher.models import Note

AMPLE = 1_000_000
BATCHES, BATCH = 10, 500
CALLS = BATCHES * BATCH
"""A trip, and a batch of the bare table, takes 500."""
ALIASES = ("default", "beside")
WORKING = 10
"""Lanes that are served in each tick, each under a key of its own."""
WAITING = 1_000
ROOM = 10
"""Calls that each of them has room for in each tick."""
TICKS = 15


@dataclass(frozen=True, kw_only=True)
class _Scene:
    """One of the databases, and the keys and lanes in it that are served in each tick."""

    alias: str
    keys: list[int]
    lanes: list[int]


def dispatching(bench: Bench) -> Iterator[Figure]:
    """Dispatch a backlog in trips of 500, and mark as many rows of a bare table in batches of 500."""
    ours, reference = side_by_side(_dispatch, _dispatch_bare, rounds=bench.effort.rounds)
    yield Figure(
        name="dispatching without publishing",
        ours=ours,
        reference=reference,
        unit="calls/s",
        side=Bound.AT_LEAST,
        bound=0.2,
    )


def backlog(bench: Bench) -> Iterator[Figure]:
    """Make a tick with a large backlog, and with a small one."""
    many, few = bench.effort.calls(1_000_000), WAITING
    scenes = [_working(alias) for alias in ALIASES]
    fixtures.let_wait(scenes[0].lanes, (many - few) // WORKING)
    yield _tick_figure(f"tick with {many:,} waiting calls against {few:,}", bench, *scenes, bound=1.2)


def sleeping(bench: Bench) -> Iterator[Figure]:
    """Make a tick with many lanes asleep, and with few; were they ready, they would go first."""
    many, few = bench.effort.calls(100_000), 10
    scenes = [_working(alias) for alias in ALIASES]
    for alias, lanes in zip(ALIASES, (many, few), strict=True):
        keys = fixtures.make_keys([f"idle:{number}" for number in range(lanes)], concurrency=1, using=alias)
        fixtures.make_lanes([[key] for key in keys], priority=1, using=alias)
    yield _tick_figure(f"tick with {many:,} sleeping lanes against {few:,}", bench, *scenes, bound=1.5)


def parked(bench: Bench) -> Iterator[Figure]:
    """Make a tick, and a trip for the room of one call, with many lanes parked on one full key, and with few."""
    many, few = bench.effort.calls(10_000), 10
    scenes = [_working(alias) for alias in ALIASES]
    full = [_full(alias, lanes, waiting=2 * many // lanes) for alias, lanes in zip(ALIASES, (many, few), strict=True)]
    yield _tick_figure(f"tick with {many:,} lanes parked on one full key against {few:,}", bench, *scenes, bound=1.5)
    ours, reference = side_by_side(
        *(partial(_trips, *pair) for pair in zip(scenes, full, strict=True)), rounds=bench.effort.rounds
    )
    yield Figure(
        name=f"trip for the room of one call with {many:,} lanes parked on its key against {few:,}",
        ours=ours,
        reference=reference,
        unit="ms",
        side=Bound.AT_MOST,
        bound=1.5,
    )


def _dispatch() -> float:
    """Return how many calls per second a backlog is dispatched at."""
    _waiting()
    with fixtures.on("default"):
        return CALLS / _seconds(lambda: sum(fixtures.dispatch(BATCH) for _ in range(BATCHES)), CALLS)


def _dispatch_bare() -> float:
    """Return how many rows per second a bare table hands out."""
    _waiting()
    database.run("fill_bare")
    database.tidy("default")
    return CALLS / _seconds(lambda: sum(len(database.run("dispatch_bare")) for _ in range(BATCHES)), CALLS)


def _waiting() -> None:
    """Let so many batches of calls wait, with ample room."""
    fixtures.clear()
    keys = fixtures.make_keys([f"key:{number}" for number in range(WORKING)], concurrency=AMPLE)
    lanes = fixtures.make_lanes([[key] for key in keys])
    fixtures.let_wait(lanes, CALLS // WORKING)
    database.tidy("default")


def _seconds(dispatch: Callable[[], int], expected: int) -> float:
    """Return how long it takes to dispatch all that is expected."""
    began = perf_counter()
    dispatched = dispatch()
    took = perf_counter() - began
    if dispatched != expected:
        message = f"{dispatched} of {expected} calls were dispatched"
        raise AssertionError(message)
    return took


def _working(alias: str) -> _Scene:
    """Make the lanes that each tick serves, and serve them, so that each statement has a plan.

    What else there is comes after: the plans must be as good then, and no ANALYZE comes to their help.
    """
    fixtures.clear(alias)
    keys = fixtures.make_keys([f"key:{number}" for number in range(WORKING)], concurrency=ROOM, using=alias)
    lanes = fixtures.make_lanes([[key] for key in keys], using=alias)
    made = _Scene(alias=alias, keys=keys, lanes=lanes)
    fixtures.let_wait(lanes, WAITING // WORKING, using=alias)
    _ticks(made)
    return made


def _full(alias: str, lanes: int, *, waiting: int) -> int:
    """Make a key whose room is taken, with lanes parked on it in each of which calls wait; return it."""
    (key,) = fixtures.make_keys(["full"], concurrency=TICKS * ROOM, using=alias)
    ahead = fixtures.make_lanes([[key]], using=alias)
    fixtures.let_wait(ahead, TICKS * ROOM, using=alias)
    with fixtures.on(alias):
        fixtures.dispatch(TICKS * ROOM)
    tenants = fixtures.make_keys([f"tenant:{number}" for number in range(lanes)], concurrency=AMPLE, using=alias)
    behind = fixtures.make_lanes([[key, tenant] for tenant in tenants], priority=1, parked_on=key, using=alias)
    fixtures.let_wait(behind, waiting, using=alias)
    return key


def _tick_figure(name: str, bench: Bench, many: _Scene, few: _Scene, *, bound: float) -> Figure:
    ours, reference = side_by_side(partial(_ticks, many), partial(_ticks, few), rounds=bench.effort.rounds)
    return Figure(name=name, ours=ours, reference=reference, unit="ms", side=Bound.AT_MOST, bound=bound)


def _ticks(scenery: _Scene) -> float:
    """Return the median milliseconds of one tick; each dispatches the same number."""
    times = []
    with fixtures.on(scenery.alias), fixtures.unpublished():
        for _ in range(TICKS):
            fixtures.end(scenery.keys, using=scenery.alias)
            fixtures.let_wait(scenery.lanes, ROOM, using=scenery.alias)
            now = timezone.now()
            notes = [Note(at=now, key_id=key, is_forced=False) for key in scenery.keys]
            Note.objects.using(scenery.alias).bulk_create(notes)
            times.append(1_000 * _seconds(lambda: engine.tick(now=timezone.now()), WORKING * ROOM))
    return median(times)


def _trips(scenery: _Scene, key: int) -> float:
    """Return the median milliseconds in which the next call gets the room of one."""
    times = []
    with fixtures.on(scenery.alias), fixtures.unpublished():
        for _ in range(TICKS):
            fixtures.end([key], most=1, using=scenery.alias)
            times.append(1_000 * _seconds(lambda: engine.dispense(queues=[], keys=[key], trips=1), 1))
    return median(times)
