"""What a call costs from its send to its end, and what lies between the end of one and the start of the next."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path
from statistics import median

from django.db.models import Max

from bench import fixtures
from bench.figures import Bench, Bound, Figure, side_by_side
from bench.tasks import DONE, STARTED, arrive, notes, nothing, stamp
from dispatcher import api
from dispatcher.models import CallQueue, RateLimitKey
from project.processes import Stack

CALLS = 5_000
AMPLE = 1_000_000
PERIOD = "PT10S"
ENDS = 200
TIMEOUT = 180.0


def end_to_end(bench: Bench) -> Iterator[Figure]:
    """Send calls under one key beside one worker, and have Celery alone do the same."""
    calls = bench.effort.calls(CALLS)
    with _worker(bench.run_dir):
        fixtures.clear()
        RateLimitKey.objects.declare("ample", concurrency=AMPLE)
        ours, reference = side_by_side(
            partial(run, ["ample"], calls), partial(run_bare, calls), rounds=bench.effort.long_rounds
        )
    yield Figure(
        name=f"end to end, {calls:,} calls",
        ours=ours,
        reference=reference,
        unit="calls/s",
        side=Bound.AT_LEAST,
        bound=0.4,
    )


def hot_key(bench: Bench) -> Iterator[Figure]:
    """Send calls under one key with an ample rate, and under a hundred of them in turn."""
    calls = bench.effort.calls(CALLS)
    keys = [f"key:{number}" for number in range(100)]
    with _worker(bench.run_dir):
        fixtures.clear()
        for name in ["hot", *keys]:
            RateLimitKey.objects.declare(name, rate=(AMPLE, PERIOD))
        ours, reference = side_by_side(
            partial(run, ["hot"], calls), partial(run, keys, calls), rounds=bench.effort.long_rounds
        )
    yield Figure(
        name="end to end, one hot key against 100 keys",
        ours=ours,
        reference=reference,
        unit="calls/s",
        side=Bound.AT_LEAST,
        bound=0.8,
    )


def end_to_start(bench: Bench) -> Iterator[Figure]:
    """Drain a key of concurrency 1 without beat, and have Celery alone start one task at a time."""
    calls = bench.effort.calls(ENDS)
    with _worker(bench.run_dir):
        fixtures.clear()
        RateLimitKey.objects.declare("single", concurrency=1)
        ours, reference = side_by_side(
            partial(end_to_start_time, "single", calls), partial(start_bare, calls), rounds=bench.effort.rounds
        )
        ended = count_ended()
        sent = CallQueue.objects.count()
    yield Figure(
        name="end to next start at concurrency 1 against publish to start",
        ours=ours,
        reference=reference,
        unit="ms",
        side=Bound.AT_MOST,
        bound=2.5,
    )
    yield Figure(
        name="drained by ends with beat stopped",
        ours=ended,
        reference=sent,
        unit="calls",
        side=Bound.AT_LEAST,
        bound=1.0,
    )


def run(keys: Sequence[str], calls: int) -> float:
    """Return the calls per second from the first send to the last recorded finish."""
    notes().delete(DONE)
    CallQueue.objects.all().delete()
    began = time.time()
    for key in islice(cycle(keys), calls):
        CallQueue.objects.send(nothing, keys=[key])
    wait_for(count_done, calls)
    wait_for(count_ended, calls)
    return calls / (last_end() - began)


def run_bare(calls: int) -> float:
    """Return the calls per second from the first `delay` to the last that was counted."""
    notes().delete(DONE)
    began = time.time()
    for _ in range(calls):
        nothing.delay()
    wait_for(count_done, calls)
    return calls / (time.time() - began)


def end_to_start_time(key: str, calls: int) -> float:
    """Return the median milliseconds from the end of one call to the start of the next, as they see it."""
    api.pause(key)
    sent = [CallQueue.objects.send(stamp, keys=[key]).id for _ in range(calls)]
    api.resume(key)
    mine = CallQueue.objects.filter(id__in=sent)
    wait_for(mine.filter(finished_at__isnull=False).count, calls)
    spans: list[list[float]] = sorted(result for result in mine.values_list("result", flat=True) if result)
    return float(median((start - end) * 1_000 for (_, end), (start, _) in pairwise(spans)))


def start_bare(calls: int) -> float:
    """Return the median milliseconds from `delay` to the start of the task, in a worker that is idle."""
    notes().delete(STARTED)
    for number in range(1, calls + 1):
        arrive.delay(time.time())
        wait_for(lambda: notes().llen(STARTED), number)
    return median(float(seconds) * 1_000 for seconds in notes().lrange(STARTED, 0, -1))


def count_ended() -> int:
    """Return how many calls have ended."""
    return CallQueue.objects.filter(finished_at__isnull=False).count()


def count_done() -> int:
    """Return how many runs of `nothing` were counted."""
    return int(notes().get(DONE) or 0)


def last_end() -> float:
    """Return when the last call ended, as a Unix time."""
    ended: float = CallQueue.objects.aggregate(at=Max("finished_at"))["at"].timestamp()
    return ended


def wait_for(count: Callable[[], int], expected: int) -> None:
    """Wait until the count is reached. Raises TimeoutError naming how far it came."""
    deadline = time.monotonic() + TIMEOUT
    while (reached := count()) < expected:
        if time.monotonic() > deadline:
            message = f"{reached} of {expected} calls ended within {TIMEOUT:g} s"
            raise TimeoutError(message)
        time.sleep(0.01)


@contextmanager
def _worker(run_dir: Path) -> Iterator[None]:
    """Have one worker of two processes run."""
    with Stack(run_dir) as stack:
        stack.start_worker(queues=[fixtures.QUEUE], concurrency=2)
        stack.wait_ready()
        yield
