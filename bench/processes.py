"""How direct delivery grows with the processes of a worker, with runs of 5 ms, and what an idle worker costs."""

import time
from collections.abc import Iterator
from functools import partial
from statistics import median

from bench import database, running
from bench.bare import Bare
from bench.figures import Bench, Figure, in_turns
from bench.tasks import RUN_S
from dispatcher.models import RateLimitKey
from project.processes import Stack

PROCESSES = (1, 2, 4, 8, 16)
FULL = 8
SECONDS = 3.0
"""How long a drain would take if all processes ran all the time."""
CALLS = 3_000
"""The most calls of a drain."""
REST_S = 5.0
"""How long a worker has had nothing to do before it counts as idle."""
IDLE_S = 20.0


def processes(bench: Bench) -> Iterator[Figure]:
    """Drain a backlog of one key by more and more processes, and by 8 with a full key beside Celery alone."""
    before = 0.0
    for count in PROCESSES:
        calls = bench.effort.calls(min(CALLS, round(count * SECONDS / RUN_S)))
        with Stack(bench.run_dir) as stack, running.worker(stack, concurrency=count):
            RateLimitKey.objects.declare("one", concurrency=running.AMPLE)
            drain = partial(running.Calls(["one"]).drain, calls, "wait")
            drain()
            rate = median(drain() for _ in range(bench.effort.long_rounds))
        yield Figure.rate(f"runs of 5 ms on one key, processes: {count} / the row before", rate, before or rate, 0.95)
        before = rate
    calls = bench.effort.calls(CALLS)
    with Stack(bench.run_dir) as stack:
        alone = Bare(stack, concurrency=FULL)
        with running.worker(stack, concurrency=FULL):
            RateLimitKey.objects.declare("full", concurrency=FULL)
            ours, other = in_turns(
                partial(running.Calls(["full"]).drain, calls, "wait"),
                partial(alone.drain, calls, "wait"),
                rounds=bench.effort.long_rounds,
            )
    yield Figure.rate(f"runs of 5 ms, {FULL} processes, full key of {FULL} / bare Celery, no limit", ours, other, 0.95)


def idle(bench: Bench) -> Iterator[Figure]:
    """Let a worker of two processes have nothing to do, and see what CPU its processes use."""
    seconds = IDLE_S * bench.effort.scale
    with Stack(bench.run_dir) as stack, running.worker(stack) as pid:
        time.sleep(REST_S)
        before = database.family_cpu_ms(pid)
        time.sleep(seconds)
        used = database.family_cpu_ms(pid) - before
    yield Figure.absolute("CPU of an idle worker of two processes, a second", used / seconds, "ms", bound=6)
