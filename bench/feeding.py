"""Direct delivery beside bare Celery: one worker of two processes takes calls from PostgreSQL."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import median

from celery import current_app
from django.db import connection, transaction

from bench import fixtures, running
from bench.figures import Bench, Bound, Figure, side_by_side
from bench.tasks import DONE, STARTED, arrive, notes, nothing
from dispatcher import api
from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import Delivery
from project.processes import Stack

BACKLOG = 5_000
STARTS = 200
BATCH = 500
STATISTICS_S = 1.5
"""How long until the server's statistics have what a session did."""
SETTLE_S = 6.0
"""How long until a worker has seen that a queue is direct."""


def direct(bench: Bench) -> Iterator[Figure]:
    """Compare end to end, drains, the start after an end, and the start on an idle worker with bare Celery."""
    calls, backlog = bench.effort.calls(running.CALLS), bench.effort.calls(BACKLOG)
    starts, rounds = bench.effort.calls(STARTS), bench.effort.long_rounds
    figure = partial(Figure, unit="calls/s", side=Bound.AT_LEAST)
    with worker(bench):
        RateLimitKey.objects.declare("ample", concurrency=running.AMPLE)
        ours, reference = side_by_side(
            partial(running.run, ["ample"], calls),
            partial(running.run_bare, calls),
            rounds=rounds,
        )
        yield figure(name=f"direct: end to end, {calls:,} calls", ours=ours, reference=reference, bound=0.9)
        ours, reference = side_by_side(
            partial(_drain, ["ample"], backlog), partial(_drain_bare, backlog), rounds=rounds
        )
        yield figure(name=f"direct: drain of {backlog:,} under a limit", ours=ours, reference=reference, bound=1.1)
        yield Figure(
            name="direct: transactions of the whole system per call of a drain",
            ours=_commits(["ample"], backlog),
            reference=1,
            unit="commits",
            side=Bound.AT_MOST,
            bound=2.0,
        )
        names = [f"limit:{number}" for number in range(3)]
        for name in names:
            RateLimitKey.objects.declare(name, concurrency=running.AMPLE, rate=(running.AMPLE, "PT10S"))
        ours, reference = side_by_side(partial(_drain, names, backlog), partial(_drain_bare, backlog), rounds=rounds)
        yield figure(name=f"direct: drain of {backlog:,}, three keys a call", ours=ours, reference=reference, bound=0.8)
        RateLimitKey.objects.declare("single", concurrency=1)
        ours, reference = side_by_side(
            partial(running.end_to_start_time, "single", starts),
            partial(running.start_bare, starts),
            rounds=bench.effort.rounds,
        )
        yield Figure(
            name="direct: end to next start at concurrency 1 against publish to start",
            ours=ours,
            reference=reference,
            unit="ms",
            side=Bound.AT_MOST,
            bound=1.0,
        )
        ours, reference = side_by_side(
            partial(_start_sent, starts),
            partial(running.start_bare, starts),
            rounds=bench.effort.rounds,
        )
        yield Figure(
            name="direct: commit of a send to its start on an idle worker",
            ours=ours,
            reference=reference,
            unit="ms",
            side=Bound.AT_MOST,
            bound=1.5,
        )


def drain(bench: Bench) -> Iterator[Figure]:
    """Compare a drain through the broker, with beat and a dispenser, with one of bare Celery."""
    backlog = bench.effort.calls(BACKLOG)
    with worker(bench, Delivery.BROKER):
        RateLimitKey.objects.declare("ample", concurrency=running.AMPLE)
        ours, reference = side_by_side(
            partial(_drain, ["ample"], backlog), partial(_drain_bare, backlog), rounds=bench.effort.long_rounds
        )
    yield Figure(
        name=f"broker: drain of {backlog:,} under a limit",
        ours=ours,
        reference=reference,
        unit="calls/s",
        side=Bound.AT_LEAST,
        bound=0.5,
    )


@contextmanager
def worker(bench: Bench, delivery: Delivery = Delivery.DIRECT) -> Iterator[None]:
    """Have one worker of two processes that takes the calls of the queue, by the broker with what that needs."""
    fixtures.clear()
    Queue.objects.update_or_create(name=fixtures.QUEUE, defaults={"delivery": delivery})
    with Stack(bench.run_dir) as stack:
        stack.start_worker(queues=[fixtures.QUEUE], concurrency=2)
        if delivery is Delivery.BROKER:
            stack.start_dispenser()
            stack.start_beat()
        stack.wait_ready()
        time.sleep(SETTLE_S)
        yield
    Queue.objects.filter(name=fixtures.QUEUE).delete()


def _drain(keys: Sequence[str], calls: int) -> float:
    """Return the calls per second from the moment at which a backlog may start to the last recorded finish."""
    notes().delete(DONE)
    CallQueue.objects.all().delete()
    api.pause(keys[0])
    for _ in range(0, calls, BATCH):
        CallQueue.objects.send_many([Call(task=nothing, keys=keys) for _ in range(min(BATCH, calls))])
    began = time.time()
    api.resume(keys[0])
    sent = CallQueue.objects.count()
    running.wait_for(running.count_ended, sent)
    return sent / (running.last_end() - began)


def _drain_bare(calls: int) -> float:
    """Return the calls per second at which bare Celery drains a backlog."""
    notes().delete(DONE)
    control = current_app.control
    control.cancel_consumer(fixtures.QUEUE, reply=True)
    for _ in range(calls):
        nothing.delay()
    began = time.time()
    control.add_consumer(fixtures.QUEUE)
    running.wait_for(running.count_done, calls)
    return calls / (time.time() - began)


def _start_sent(calls: int) -> float:
    """Return the median milliseconds from the commit of a call to its start in an idle worker."""
    notes().delete(STARTED)
    sent: list[float] = []
    for number in range(1, calls + 1):
        with transaction.atomic():
            # Before the hook of `send`, which wakes the worker.
            transaction.on_commit(lambda: sent.append(time.time()))
            CallQueue.objects.send(arrive, args=[0])
        running.wait_for(lambda: notes().llen(STARTED), number)
        time.sleep(0.01)
    started = map(float, notes().lrange(STARTED, 0, -1))
    return median((at - since) * 1_000 for at, since in zip(started, sent, strict=True))


def _commits(keys: Sequence[str], calls: int) -> float:
    """Return how many transactions of the whole system one call of a drain takes, its send left out."""
    before = committed()
    _drain(keys, calls)
    time.sleep(STATISTICS_S)
    sent = -(-calls // BATCH)
    return (committed() - before - sent) / calls


def committed() -> int:
    """Return how many transactions the database has committed, as far as the server's statistics have them."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])
