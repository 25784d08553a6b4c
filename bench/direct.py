"""What direct delivery does beside Celery alone: end to end, drains, from one call to the next, and what it costs."""

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median

from bench import running
from bench.bare import Bare
from bench.figures import Bench, Figure, in_turns
from bench.running import Calls
from dispatcher.models import RateLimitKey
from project.processes import Stack

CALLS = 3_000
BACKLOG = 3_000
ONE_BY_ONE = 200
COSTS = [{"ample": cost} for cost in range(1, 6)]
PLAIN = "plain"
"""A queue of the broker, of tasks that are no calls."""
THROTTLE = 50
"""Starts per second of the key with a throttle."""

DRAINS: dict[str, tuple[float, Sequence[running.Keys]]] = {
    "under a limit": (3, [["ample"]]),
    "three keys a call, each with a concurrency and a window": (2, [["three:0", "three:1", "three:2"]]),
    "with costs from 1 to 5": (2, COSTS),
    "with a throttle far above": (2, [["far"]]),
}
"""The keys of the calls of each drain, and by how much it is to be faster than Celery alone."""


def direct(bench: Bench) -> Iterator[Figure]:
    """Measure one worker of two processes, side by side with workers of Celery alone."""
    with Stack(bench.run_dir) as stack:
        alone = [Bare(stack, prefetch=prefetch) for prefetch in (4, 1)]
        single = Bare(stack, concurrency=1)
        with running.worker(stack):
            _declare()
            yield from _end_to_end(bench, alone)
            yield from _drains(bench, alone)
            yield from _one_by_one(bench, single, alone[0])
            yield from _costs(bench)
            # Each call stops at the limit, and is let go: two entries.
            drained = partial(Calls(["single"]).drain, bench.effort.calls(ONE_BY_ONE))
            without = median(drained() for _ in range(bench.effort.long_rounds))
        with running.worker(stack, beside=[PLAIN], env={"BENCH_EVENTS": "3600"}):
            _declare()
            drained()
            logged = median(drained() for _ in range(bench.effort.long_rounds))
            yield Figure.rate("drain at concurrency 1, with an event log / without", logged, without, 0.9)
            took = running.alternate(PLAIN, bench.effort.calls(100), 0.02)
            name = "messages of a broker and calls in one pool, runs of 20 ms / two processes that never rest"
            yield Figure.time(name, 1_000 * took, bench.effort.calls(100) * 20, 1.15)


def _declare() -> None:
    declare = RateLimitKey.objects.declare
    declare("ample", concurrency=running.AMPLE)
    declare("single", concurrency=1)
    declare("far", throttle=(running.AMPLE, "PT1S"))
    declare("throttle", throttle=(THROTTLE, "PT1S"))
    for number in range(3):
        declare(f"three:{number}", concurrency=running.AMPLE, rate=(running.AMPLE, "PT10S"))


def _end_to_end(bench: Bench, alone: list[Bare]) -> Iterator[Figure]:
    calls = bench.effort.calls(CALLS)
    ours, *others = in_turns(
        partial(Calls(["ample"]).end_to_end, calls),
        *(partial(each.end_to_end, calls) for each in alone),
        rounds=bench.effort.long_rounds,
    )
    for prefetch, other in zip((4, 1), others, strict=True):
        yield Figure.rate(f"end to end under a limit / bare Celery, prefetch {prefetch}", ours, other, 1)


def _drains(bench: Bench, alone: list[Bare]) -> Iterator[Figure]:
    calls = bench.effort.calls(BACKLOG)
    *ours, four, one = in_turns(
        *(partial(Calls(*keys).drain, calls) for _, keys in DRAINS.values()),
        *(partial(each.drain, calls) for each in alone),
        rounds=bench.effort.long_rounds,
    )
    for (name, (bound, _)), rate in zip(DRAINS.items(), ours, strict=True):
        yield Figure.rate(f"drain {name} / bare Celery, prefetch 4", rate, four, bound)
    yield Figure.rate("drain under a limit / bare Celery, prefetch 1", ours[0], one, 3)


def _one_by_one(bench: Bench, single: Bare, alone: Bare) -> Iterator[Figure]:
    calls, rounds = bench.effort.calls(ONE_BY_ONE), bench.effort.rounds
    ours, other = in_turns(partial(Calls(["single"]).hand_over, calls), partial(single.hand_over, calls), rounds=rounds)
    yield Figure.time("end of a call to the next start at concurrency 1 / bare Celery, -c 1, backlog", ours, other, 1.3)
    ours, other = in_turns(partial(Calls().start, calls // 2), partial(alone.start, calls // 2), rounds=rounds)
    yield Figure.time("commit of a send to its start, idle worker / publish to start, bare Celery", ours, other, 1)


def _costs(bench: Bench) -> Iterator[Figure]:
    calls = bench.effort.calls(CALLS)
    spent = running.cost(partial(Calls(["ample"]).end_to_end, calls), calls)
    absolute = Figure.absolute
    whole = "end to end under a limit, sends included"
    yield absolute(f"transactions a call, whole system, {whole}", spent.transactions, "commits", bound=2.3)
    yield absolute(f"CPU of PostgreSQL a call, {whole}", spent.cpu_ms, "ms", bound=0.6)
    yield Figure.rate(f"calls per second and core of PostgreSQL, {whole}", 1_000 / spent.cpu_ms, 1, 1_600)
    yield absolute(f"dead rows a call, {whole}", spent.dead_rows, "rows", bound=8)
    yield absolute(f"WAL a call, {whole}", spent.wal_kb, "kB", bound=8)
    spent = running.cost(partial(Calls(["ample"]).drain, calls), calls)
    drained = "drain of a backlog, send_many included"
    yield absolute(f"transactions a call, whole system, {drained}", spent.transactions, "commits", bound=2)
    yield absolute(f"CPU of PostgreSQL a call, {drained}", spent.cpu_ms, "ms", bound=0.2)
    calls = bench.effort.calls(ONE_BY_ONE)
    spent = running.cost(partial(Calls(["single"]).drain, calls, "wait"), calls)
    yield absolute(
        "transactions a call, runs of 5 ms that fill their key, whole system", spent.transactions, "commits", bound=2.5
    )
    spent = running.cost(partial(Calls(["throttle"]).drain, calls), calls)
    throttled = f"a call under a throttle of {THROTTLE} a second, whole system"
    yield absolute(f"trips of {throttled}", spent.transactions, "commits", bound=3)
    yield absolute(f"CPU of PostgreSQL of {throttled}", spent.cpu_ms, "ms", bound=2)
