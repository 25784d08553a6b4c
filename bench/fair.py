"""Fair shares among real processes: what each tenant gets of a key, starts a second, and what a trip costs.

Four processes take calls one by one or four at a time, as fast as they can, from one queue or two. The first tenant has
50 lanes, or a weight of 3. The share that it gets may be 2 % off. `off` is the same without fair_by.
"""

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import product
from statistics import median
from typing import Any, Final

from django.db import connections

from bench import database, fixtures, trips
from bench.figures import Bench, Figure
from bench.trips import Backend, Worker
from dispatcher.models import CallQueue, Lane, Process, Queue, RateLimitKey
from dispatcher.states import Delivery

PROCESSES: Final = 4
QUEUES: Final = (fixtures.QUEUE, "second")
CALLS: Final = 6_000
"""Of each tenant."""
MIXED: Final = 5
"""Calls of the same cost after each other."""
OFF_BY: Final = 2.0
"""Percent."""


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Two tenants, and the key that they wait for."""

    name: str
    lanes: tuple[int, int] = (10, 10)
    weights: tuple[int, int] = (1, 1)
    limits: Mapping[str, Any]
    queues: int = 1
    room: int = 1
    highest_cost: int = 1
    is_fair: bool = True

    @property
    def wanted(self) -> float:
        """The percentage of the first tenant."""
        return 100 * self.weights[0] / sum(self.weights)


def contests() -> Iterator[Contest]:
    """Return the contests."""
    for queues, (few, (room, concurrency)) in product((1, 2), product((1, 2), ((1, 2), (4, 8)))):
        yield Contest(
            name=f"50 lanes against {few}, queues {queues}, {room} a trip",
            lanes=(50, few),
            limits={"concurrency": concurrency},
            queues=queues,
            room=room,
        )
    second = timedelta(seconds=1)
    for kind, limits in (
        ("concurrency", {"concurrency": 8}),
        ("processes", {"concurrency": 100}),
        ("rate", {"rate_limit": 400, "rate_period": second}),
        ("throttle", {"throttle_limit": 400, "throttle_period": second}),
    ):
        yield Contest(name=f"weights 3:1, costs 1 to 5, {kind}", weights=(3, 1), limits=limits, highest_cost=5)


def fair(bench: Bench) -> Iterator[Figure]:
    """Measure the shares in each contest, starts with and without fair_by, and a trip with and without."""
    for queue in QUEUES:
        Queue.objects.update_or_create(name=queue, defaults={"delivery": Delivery.DIRECT})
    for contest in contests():
        if bench.only in contest.name:
            share, starts = run(contest)
            yield Figure.time(f"{contest.name}: off its share", abs(share - contest.wanted), OFF_BY, 1, unit="%")
            _, others = run(replace(contest, is_fair=False))
            yield Figure.rate(f"{contest.name}: starts with fair_by and without", starts, others, 0.6, unit="starts/s")
    for room, lanes in ((1, 2), (1, 4), (16, 4), (16, 64)):
        name = f"a trip, {room} calls, {lanes} lanes of two tenants"
        if bench.only in name:
            on, off = (_trip(bench, room, lanes, is_fair=is_fair) for is_fair in (True, False))
            yield Figure.time(f"{name}, with fair_by and without", on, off, 1.6)


def make(contest: Contest, calls: int = CALLS) -> None:
    """Make the keys and the lanes, and let the calls wait."""
    fixtures.clear()
    Process.objects.all().delete()
    fair_by = "tenant:*" if contest.is_fair else None
    api = RateLimitKey.objects.create(name="api", fair_by=fair_by, **contest.limits)
    for number, (lanes, weight) in enumerate(zip(contest.lanes, contest.weights, strict=True)):
        tenant = RateLimitKey.objects.create(name=f"tenant:{number}", weight=weight)
        topics = fixtures.make_keys([f"topic:{number}:{n}" for n in range(lanes)], concurrency=trips.AMPLE)
        made = [
            *fixtures.make_lanes([[api.pk, tenant.pk, topic] for topic in topics[:: contest.queues]]),
            *fixtures.make_lanes(
                [[api.pk, tenant.pk, topic] for topic in topics[1::2] if contest.queues > 1], queue=QUEUES[1]
            ),
        ]
        costs = range(1, contest.highest_cost + 1)
        each = -(-calls // lanes // len(costs))
        for _, cost in product(range(-(-each // MIXED)), costs):
            fixtures.let_wait(made, MIXED, costs=[cost, 1, 1])
    database.tidy()


def run(contest: Contest) -> tuple[float, float]:
    """Return the percentage of the costs that the first tenant got, and the starts per second."""
    make(contest)
    connections.close_all()
    at = time.time() + 0.5
    with ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("fork")) as pool:
        starts = sum(pool.map(partial(_take_until, at, contest), range(PROCESSES)))
    tenants = {key.pk: key.name for key in RateLimitKey.objects.filter(name__startswith="tenant:")}
    owner = {lane.pk: next(tenants[key] for key in lane.key_ids if key in tenants) for lane in Lane.objects.all()}
    got: Counter[str] = Counter()
    for lane, costs in CallQueue.objects.filter(started_at__isnull=False).values_list("lane_id", "key_costs"):
        got[owner[lane]] += costs[0] if costs else 1
    return 100 * got["tenant:0"] / got.total(), starts / trips.SECONDS


def _take_until(at: float, contest: Contest, number: int) -> int:
    """Take calls for SECONDS from a time on; return how many."""
    return trips.take_until(Worker(contest.room, waits=True, queue=QUEUES[number % contest.queues]), at)


def _trip(bench: Bench, room: int, lanes: int, *, is_fair: bool) -> float:
    """Return the median of what a call's part of a trip costs, of a key that is full."""
    half = max(1, lanes // 2)
    limits = {"concurrency": room}
    make(Contest(name="", lanes=(half, max(1, lanes - half)), limits=limits, room=room, is_fair=is_fair))
    backend, worker = Backend(), Worker(room, waits=True)
    backend.during(worker, trips.WARM)
    count = bench.effort.calls(trips.TRIPS)
    return median(backend.during(worker, count) for _ in range(bench.effort.rounds)) / room
