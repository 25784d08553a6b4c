"""What direct delivery costs in CPU where calls are spread over many queues and keys."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import cycle, islice

import psutil
from django.db import connection

from bench import fixtures, running, scaling
from bench.figures import Bench, Bound, Figure
from bench.tasks import nothing
from dispatcher import api
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call

CALLS = 5_000
QUEUES, KEYS = 100, 10_000
GATE = "gate"
"""The key that all calls spend as well; it is paused while they are sent."""


def load(bench: Bench) -> Iterator[Figure]:
    """Drain a backlog spread over 100 queues and 10,000 keys, and one of a single queue and key."""
    calls = bench.effort.calls(CALLS)
    queues = [f"{fixtures.QUEUE}.{number}" for number in range(QUEUES)]
    with scaling.workers(bench, 1, queues=queues):
        fixtures.make_keys([f"spread:{number}" for number in range(KEYS)], concurrency=2)
        RateLimitKey.objects.declare(GATE, concurrency=running.AMPLE)
        RateLimitKey.objects.declare("single", concurrency=running.AMPLE)
        spread = _cpu_per_call(queues, [f"spread:{number}" for number in range(KEYS)], calls)
        single = _cpu_per_call(queues[:1], ["single"], calls)
    figure = partial(Figure, unit="ms", side=Bound.AT_MOST)
    for who, bound in (("PostgreSQL", 2.5), ("worker", 1.5)):
        yield figure(
            name=f"direct: CPU of {who} per call, {QUEUES} queues and {KEYS:,} keys",
            ours=spread[who],
            reference=single[who],
            bound=bound,
        )


def _cpu_per_call(queues: Sequence[str], keys: Sequence[str], calls: int) -> dict[str, float]:
    """Return the milliseconds of CPU that a call takes from its start on: a second of a core at 1,000 calls per second.

    Each call spends one of the keys, in turn, and the gate.
    """
    CallQueue.objects.all().delete()
    api.pause(GATE)
    spent = zip(islice(cycle(queues), calls), cycle(keys), strict=False)
    CallQueue.objects.send_many(Call(task=nothing, queue=queue, keys=[key, GATE]) for queue, key in spent)
    before = _cpu_s()
    api.resume(GATE)
    running.wait_for(running.count_ended, calls)
    # The ends of the last calls are recorded; what the worker does after them is no part of a call.
    after = _cpu_s()
    return {who: (after[who] - before[who]) * 1_000 / calls for who in after}


def _cpu_s() -> dict[str, float]:
    """Return the seconds of CPU that the server's sessions of this database and the worker's processes have used."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        sessions = {pid for (pid,) in cursor.fetchall()}
    workers = {
        child.pid for child in psutil.Process(os.getpid()).children(recursive=True) if "worker" in child.cmdline()
    }
    return {"PostgreSQL": sum(map(_used_s, sessions)), "worker": sum(map(_used_s, workers))}


def _used_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
