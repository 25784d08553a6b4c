"""What a trip costs: CPU of PostgreSQL around statements `take`, by the kernel's account of one connection's process.

`python -m bench --only "three keys" trips` measures the figures whose names have this in them; with --functions each is
followed by the functions that it spent most in (their own wall time, from a run of its own: the clock costs, too).
The bounds are milliseconds, so the ratio is by how much of its bound a trip is.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from statistics import median
from typing import Any, Final

import uuid_utils.compat as uuid7
from django.db import connection, connections, transaction

from bench import database, fixtures, running
from bench.figures import Bench, Figure, ensure, in_turns
from bench.models import PlainRow
from bench.running import STATISTICS_S
from bench.tasks import nothing
from dispatcher import ending
from dispatcher.engine import dispenser
from dispatcher.lifecycle import heartbeat
from dispatcher.lifecycle.take import Notes, Start, Taken, Taker, take
from dispatcher.models import CallQueue, Process, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import Delivery
from project.processes import Stack
from project.services import snapshot

TRIPS: Final = 60
"""Trips of a round."""
WARM: Final = 20
"""Trips before the first: a statement is planned for good at the sixth, and a page is hinted at its second reading."""
SETTLE_S: Final = 0.002
"""How long a process of the server may work on after its answer."""
CALLS: Final = 10_000
"""Calls under a snapshot that is held."""
WAITING: Final = 20_000
"""Calls that wait beside a trip."""
CONNECTIONS: Final = 8
SECONDS: Final = 3.0
"""How long connections take side by side."""
LONGEST_WAIT_S: Final = 0.02
MANY: Final = 16
AMPLE: Final = 1_000_000
KWARGS: Final = {"order": 4711, "customer": "acme", "amount": "19.99", "currency": "EUR"}
DONE: Final = ending.completed(None)

Limits = Mapping[str, Any]
ROOM: Final[Limits] = {"concurrency": 100}
WINDOW: Final[Limits] = {"rate_limit": AMPLE, "rate_period": timedelta(minutes=1)}
THROTTLE: Final[Limits] = {"throttle_limit": AMPLE, "throttle_period": timedelta(seconds=10)}
ALL: Final[Mapping[str, Limits]] = {
    "a": {**ROOM, **WINDOW, **THROTTLE},
    "b": {**ROOM, **WINDOW},
    "c": ROOM,
}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """Keys, the lanes that spend them, and calls that wait."""

    name: str
    bound: float
    """Milliseconds of a trip; a call's part, if it takes several."""
    keys: Mapping[str, Limits] = field(default_factory=lambda: {"a": ROOM})
    lanes: Sequence[Sequence[str]] = (("a",),)
    costs: Sequence[int] | None = None
    """Of the keys of each lane, in their order."""
    calls: int = 1
    """That a trip ends, and starts."""
    parked: int = 0
    """Lanes that are parked on the first key, each with two calls."""
    started: int = 0
    """Starts of each key, from before its window until now."""


def _scenes() -> Iterator[Scene]:
    one = Scene(name="one key", bound=0.7)
    three = Scene(name="three keys of all kinds, with costs", bound=0.85, keys=ALL, lanes=[[*ALL]], costs=[1, 2, 3])
    own = {f"k{number}": ROOM for number in range(24)}
    alone = {"a": {"concurrency": 1}}
    yield one
    yield replace(one, name="one key of concurrency 1", keys=alone)
    yield replace(one, name="a window in full use", keys={"a": WINDOW}, started=10_000)
    yield replace(one, name="a throttle", keys={"a": THROTTLE})
    yield three
    for members, bound in ((10, 0.82), (300, 1.59)):
        group: dict[str, Limits] = {"g:*": {}, **{f"g:{number}": {"concurrency": 20} for number in range(members)}}
        yield Scene(name=f"a group of {members}", bound=bound, keys=group, lanes=[["g:*"]])
    yield replace(one, name="one key, 16 calls", bound=0.075, calls=MANY)
    yield replace(three, name=f"{three.name}, 16 calls", bound=0.1, calls=MANY)
    yield Scene(
        name="24 lanes of a key each, 16 calls", bound=0.081, keys=own, lanes=[[key] for key in own], calls=MANY
    )
    yield replace(one, name="one key of concurrency 1, 10,000 lanes parked on it", keys=alone, parked=10_000)
    full = {"a": {"concurrency": MANY}}
    yield Scene(name="one key, 16 calls, 10,000 lanes parked on it", bound=0.081, keys=full, parked=10_000, calls=MANY)
    yield replace(one, name=f"one key, {WAITING:,} waiting calls")


def trips(bench: Bench) -> Iterator[Figure]:
    """Measure trips in each scene, then under a snapshot, side by side, and a send."""
    Queue.objects.update_or_create(name=fixtures.QUEUE, defaults={"delivery": Delivery.DIRECT})
    for scene in _scenes():
        if bench.only in scene.name:
            yield _trips(scene, bench)
    for name, bound, is_sent in (("one hot lane", 1.5, False), ("a lane that sleeps between calls", 2.0, True)):
        if bench.only in (named := f"{CALLS:,} calls under a snapshot: {name}"):
            ours, reference = (_aged(bench, is_sent=is_sent, is_held=is_held) for is_held in (True, False))
            yield Figure.time(named, ours, reference, bound)
    for count in (1, CONNECTIONS):
        if bench.only in (named := f"{CONNECTIONS} connections against one, lanes of one key with room: {count}"):
            own = [f"lane:{number}" for number in range(count)]
            keys = {"a": ROOM, **dict.fromkeys(own, ROOM)}
            scene = Scene(name=named, bound=0, keys=keys, lanes=[["a", each] for each in own])
            sides = (partial(_take_in_turns, processes, scene) for processes in (CONNECTIONS, 1))
            ours, reference = in_turns(*sides, rounds=bench.effort.long_rounds)
            yield Figure.rate(named, ours, reference, 1, unit="starts/s")
    if bench.only in (named := "a send against a create"):
        yield from _send(named, bench)


class Backend:
    """The server's process of a new connection of this thread."""

    def __init__(self) -> None:
        """Connect: no plan is there yet."""
        connection.close()
        ((self._pid,),) = database.execute("SELECT pg_backend_pid()")

    def spent(self) -> float:
        """Return the milliseconds of CPU that it has used."""
        time.sleep(SETTLE_S)
        return database.cpu_ms(self._pid)

    def during(self, action: Callable[[], object], times: int) -> float:
        """Return the milliseconds of CPU that it uses each time."""
        before = self.spent()
        for _ in range(times):
            action()
        return (self.spent() - before) / times


class Worker:
    """Takes calls; each trip brings the ends of the trip before."""

    def __init__(self, calls: int, *, waits: bool = False, queue: str = fixtures.QUEUE) -> None:
        """Register it. calls: how many of them a trip takes. waits: where others may have taken them, try again."""
        self._taker = Taker(worker=uuid7.uuid7(), queues=[queue], tasks=[nothing.name], notes=Notes())
        self._calls, self._waits = calls, waits
        self._starts: Sequence[Start] = ()
        here = heartbeat.WorkerInfo(
            id=self._taker.worker or uuid7.uuid7(),
            name=f"trips-{self._taker.worker}",
            host="bench",
            pid=1,
            pool="prefork",
            processes=2,
            queues=[queue],
            tasks=[nothing.name],
        )
        heartbeat.record(here, [])
        Process.objects.create(id=here.id, worker_id=here.id, queues=[queue])

    def __call__(self) -> Taken:
        """Make a trip. Raises AssertionError if it starts less than it should."""
        ends = [start.ended(DONE) for start in self._starts]
        taken = take(self._taker, ends, room=self._calls, publish=dispenser.PUBLISH)
        self._starts = taken.starts
        ensure(self._waits or len(self._starts) == self._calls, f"{len(self._starts)} of {self._calls} calls started")
        return taken

    def stop(self) -> None:
        """Bring the last ends."""
        take(self._taker, [start.ended(DONE) for start in self._starts])


def _make(scene: Scene, waiting: int) -> None:
    """Make the keys and lanes of a scene, and let so many calls wait in its lanes."""
    fixtures.clear()
    Process.objects.all().delete()
    made = RateLimitKey.objects.bulk_create(RateLimitKey(name=name, **limits) for name, limits in scene.keys.items())
    keys = {key.name: key.pk for key in made}
    lanes = fixtures.make_lanes([[keys[name] for name in names] for names in scene.lanes])
    fixtures.let_wait(lanes, -(-waiting // len(lanes)), costs=scene.costs)
    if scene.parked:
        first = made[0].pk
        tenants = fixtures.make_keys([f"tenant:{number}" for number in range(scene.parked)], concurrency=AMPLE)
        fixtures.let_wait(fixtures.make_lanes([[first, each] for each in tenants], parked_on=first), 2)
    if scene.started:
        database.run("fill_starts", {"keys": [*keys.values()], "starts": scene.started})
    database.tidy()


def _trips(scene: Scene, bench: Bench) -> Figure:
    """Return the median of what a trip costs in a scene, or of a call's part of it."""
    _make(scene, WAITING)
    backend, worker = Backend(), Worker(scene.calls)
    backend.during(worker, WARM)
    count = bench.effort.calls(TRIPS)
    cost = median(backend.during(worker, count) for _ in range(bench.effort.rounds)) / scene.calls
    if bench.shows_functions:
        _show_functions(worker, count)
    return Figure.time(f"trip: {scene.name}", cost, scene.bound, 1)


def _show_functions(action: Callable[[], object], times: int) -> None:
    """Print which functions take how long by themselves, those that PostgreSQL inlines in their callers."""
    database.execute("SELECT pg_stat_reset()")
    database.execute("SET track_functions = 'all'")
    for _ in range(times):
        action()
    database.execute("SET track_functions = 'none'")
    time.sleep(STATISTICS_S)
    database.execute("SELECT 1")  # after it the server has the statistics of what came before
    rows = database.execute("SELECT funcname, calls, self_time FROM pg_stat_user_functions ORDER BY self_time DESC")
    for name, calls, own in (row for row in rows if row[1]):
        print(f"    {name:<40} {calls / times:8.2f} calls a trip {own / times:8.4f} ms of its own")


def _aged(bench: Bench, *, is_sent: bool, is_held: bool) -> float:
    """Return what a trip costs after many others, with a snapshot from before these or without one.

    is_sent: each call is sent just before its trip, so that its lane sleeps in between.
    """
    calls = bench.effort.calls(CALLS)
    _make(Scene(name="", bound=0), 1 if is_sent else calls + 10 * TRIPS * bench.effort.rounds)
    backend, worker = Backend(), Worker(1)
    send = partial(CallQueue.objects.send, nothing, kwargs=KWARGS, keys=["a"], queue=fixtures.QUEUE)
    with ThreadPoolExecutor(1) as sender, snapshot(os.environ["DATABASE_URL"]) if is_held else nullcontext():

        def trip(make: Callable[[], Any] = worker) -> Any:
            if is_sent:
                sender.submit(send).result()  # by a connection of its own
            return make()

        for _ in range(calls):
            trip()
        measure = partial(backend.during, worker, 1 if is_sent else TRIPS)
        cost: float = median(trip(measure) for _ in range(bench.effort.rounds * (TRIPS if is_sent else 1)))
        sender.submit(connections.close_all).result()
    return cost


def _take_in_turns(count: int, scene: Scene) -> float:
    """Return the starts per second of so many processes with a connection each."""
    _make(scene, CALLS)
    connections.close_all()
    at = time.time() + 0.5
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("fork")) as pool:
        return sum(pool.map(_take_until, [at] * count)) / SECONDS


def _take_until(at: float) -> int:
    """Take calls one by one for SECONDS from a time on; return how many."""
    worker = Worker(1, waits=True)
    worker()
    return take_until(worker, at)


def take_until(worker: "Worker", at: float) -> int:
    """Have a worker take calls for SECONDS from a time on, as fast as it can; return how many started."""
    starts = 0
    time.sleep(max(0.0, at - time.time()))
    while time.time() < at + SECONDS:
        taken = worker()
        starts += len(taken.starts)
        if not taken.starts:
            wait = LONGEST_WAIT_S if taken.again_at is None else (taken.again_at - taken.at).total_seconds()
            time.sleep(min(max(0.0, wait), LONGEST_WAIT_S))
    worker.stop()
    connections.close_all()
    return starts


def _send(name: str, bench: Bench) -> Iterator[Figure]:
    """Measure sends beside a worker that waits for calls, against creates in a table of 6 columns, alternately."""
    with Stack(bench.run_dir) as stack, running.worker(stack):
        _make(Scene(name="", bound=0), 1)
        yield from _sends(name, bench)


def _sends(name: str, bench: Bench) -> Iterator[Figure]:
    backend, times = Backend(), bench.effort.calls(TRIPS)
    row: dict[str, Any] = {"task": nothing.name, "args": [], "kwargs": KWARGS, "queue": fixtures.QUEUE}
    rows = PlainRow._default_manager  # noqa: SLF001 -- a model in general has no other name for it
    call = Call(task=nothing, kwargs=KWARGS, keys=["a"], queue=fixtures.QUEUE)
    send = partial(CallQueue.objects.send, nothing, kwargs=KWARGS, keys=["a"], queue=fixtures.QUEUE)
    create = partial(rows.create, **row)

    def cost(action: Callable[[], object]) -> tuple[float, float]:
        began = time.thread_time()
        server = backend.during(action, times)
        return server, (time.thread_time() - began) * 1_000 / times

    for kind, action, reference, calls in (
        ("", send, create, 1),
        (" in a transaction", transaction.atomic(send), transaction.atomic(create), 1),
        (
            f", {MANY} at once",
            lambda: CallQueue.objects.send_many([call] * MANY),
            lambda: rows.bulk_create([PlainRow(**row) for _ in range(MANY)]),
            MANY,
        ),
    ):
        for each in (action, reference):
            backend.during(each, WARM)
        pairs = [(cost(action), cost(reference)) for _ in range(bench.effort.rounds)]
        for part, of in (
            ("", sum),
            (", of it PostgreSQL", lambda both: both[0]),
            (", of it Python", lambda both: both[1]),
        ):
            ours, theirs = (median(of(pair[side]) for pair in pairs) / calls for side in (0, 1))
            yield Figure.time(f"{name}{kind}{part}", ours, theirs, 1.5)
