"""What admitting costs, and what it must not cost: the backlog, the lanes that sleep, the lanes that are parked."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from time import perf_counter

from django.utils import timezone

from bench import database, scene
from bench.figures import Bench, Bound, Figure, each, side_by_side
from dispatcher import engine
from dispatcher.lifecycle.admit import admit
from dispatcher.models import RateLimitKey

AMPLE = 1_000_000
BATCH = 500
BATCHES = 10
WORKING = 10
"""Lanes that are served in each pass, each under a key of its own."""
ROOM = 10
"""Calls that each of them has room for in each pass."""
PASSES = 15


def admission(bench: Bench) -> Iterator[Figure]:
    """Admit a backlog in passes of 500, and mark as many rows of a bare table in batches of 500."""
    ours, reference = side_by_side(partial(_admit, BATCHES), partial(_admit_bare, BATCHES), rounds=bench.effort.rounds)
    yield Figure(
        name="admission without publishing",
        ours=ours,
        reference=reference,
        unit="calls/s",
        side=Bound.AT_LEAST,
        bound=0.2,
    )


def backlog(bench: Bench) -> Iterator[Figure]:
    """One pass with a large backlog, and with a small one."""
    many, few = bench.effort.calls(1_000_000), 1_000
    for alias, calls in (("default", many), ("beside", few)):
        _working(alias, waiting=calls)
        database.tidy(alias)
    yield _passes(f"pass with {many:,} waiting calls against {few:,}", bench, bound=1.2)


def sleeping(bench: Bench) -> Iterator[Figure]:
    """One pass with many lanes asleep, and with few."""
    many, few = bench.effort.calls(100_000), 10
    for alias, lanes in (("default", many), ("beside", few)):
        _working(alias)
        keys = scene.make_keys([f"idle:{number}" for number in range(lanes)], concurrency=1, using=alias)
        scene.make_lanes([[key] for key in keys], using=alias)
        database.tidy(alias)
    yield _passes(f"pass with {many:,} sleeping lanes against {few:,}", bench, bound=1.5)


def parked(bench: Bench) -> Iterator[Figure]:
    """One pass, and one hand-over, with many lanes parked on one full key, and with few."""
    many, few = bench.effort.calls(10_000), 10
    full = {}
    for alias, lanes in (("default", many), ("beside", few)):
        _working(alias)
        full[alias] = _full(alias, lanes, waiting=2 * many // lanes)
        database.tidy(alias)
    yield _passes(f"pass with {many:,} lanes parked on one full key against {few:,}", bench, bound=1.5)
    ours, reference = side_by_side(
        partial(_hand_overs, "default", full["default"]),
        partial(_hand_overs, "beside", full["beside"]),
        rounds=bench.effort.rounds,
    )
    yield Figure(
        name=f"hand-over with {many:,} lanes parked on its key against {few:,}",
        ours=ours,
        reference=reference,
        unit="ms",
        side=Bound.AT_MOST,
        bound=1.5,
    )


def _admit(passes: int) -> float:
    """Return how many calls per second a backlog is admitted at."""
    lanes = _waiting(passes)
    took = _seconds(lambda: sum(len(admit(lanes=lanes).calls) for _ in range(passes)), passes * BATCH)
    return passes * BATCH / took


def _admit_bare(batches: int) -> float:
    """Return how many rows per second a bare table hands out."""
    _waiting(batches)
    database.run("fill_bare")
    database.tidy()
    took = _seconds(lambda: sum(len(database.run("admit_bare")) for _ in range(batches)), batches * BATCH)
    return batches * BATCH / took


def _waiting(batches: int) -> list[int]:
    """Let so many batches of calls wait, with ample room, and return their lanes."""
    scene.clear()
    keys = scene.make_keys([f"key:{number}" for number in range(WORKING)], concurrency=AMPLE)
    lanes = scene.make_lanes([[key] for key in keys])
    scene.let_wait(lanes, batches * BATCH // WORKING)
    database.tidy()
    return lanes


def _seconds(admit_all: Callable[[], int], expected: int) -> float:
    """Return how long it takes to admit all that is expected."""
    began = perf_counter()
    admitted = admit_all()
    took = perf_counter() - began
    if admitted != expected:
        message = f"{admitted} of {expected} calls were admitted"
        raise AssertionError(message)
    return took


def _working(alias: str, *, waiting: int = 1_000) -> None:
    """Make the lanes that each pass serves, with so many calls waiting in all of them together."""
    scene.clear(alias)
    keys = scene.make_keys([f"key:{number}" for number in range(WORKING)], concurrency=ROOM, using=alias)
    lanes = scene.make_lanes([[key] for key in keys], awake=True, using=alias)
    scene.let_wait(lanes, waiting // WORKING, using=alias)


def _full(alias: str, lanes: int, *, waiting: int) -> int:
    """Make a key whose room is taken, with lanes parked on it in each of which calls wait; return it."""
    (key,) = scene.make_keys(["full"], concurrency=PASSES * ROOM, using=alias)
    ahead = scene.make_lanes([[key]], using=alias)
    scene.let_wait(ahead, PASSES * ROOM, using=alias)
    with scene.on(alias):
        admit(lanes=ahead)
    tenants = scene.make_keys([f"tenant:{number}" for number in range(lanes)], concurrency=5, using=alias)
    behind = scene.make_lanes([[key, tenant] for tenant in tenants], parked_on=key, using=alias)
    scene.let_wait(behind, waiting, using=alias)
    return key


def _passes(name: str, bench: Bench, *, bound: float) -> Figure:
    ours, reference = side_by_side(partial(_ticks, "default"), partial(_ticks, "beside"), rounds=bench.effort.rounds)
    return Figure(name=name, ours=ours, reference=reference, unit="ms", side=Bound.AT_MOST, bound=bound)


def _ticks(alias: str) -> float:
    """Return the median milliseconds of one pass as the dispenser makes it, each admitting the same number."""
    keys = RateLimitKey.objects.using(alias).filter(name__startswith="key:")
    ids = [key.pk for key in keys]
    lanes = [key.parked.get().pk for key in keys] if keys.filter(parked__isnull=False).exists() else []
    times = []
    with scene.on(alias), scene.unpublished():
        for _ in range(PASSES):
            scene.end(ids, using=alias)
            scene.let_wait(lanes, ROOM, using=alias)
            # As a release leaves it when it hands nothing on itself.
            keys.update(opens_at=timezone.now())
            times.append(each(lambda: engine.tick(now=timezone.now()), 1))
    return median(times)


def _hand_overs(alias: str, key: int) -> float:
    """Return the median milliseconds in which the room of one call is handed to the next."""
    times = []
    with scene.on(alias), scene.unpublished():
        for _ in range(PASSES):
            scene.end([key], most=1, using=alias)
            times.append(each(lambda: engine.hand_over([key]), 1))
    return median(times)
