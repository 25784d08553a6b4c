"""How direct delivery grows: with workers, with keys a call, with queues and rules."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import cycle, islice
from statistics import median

from bench import feeding, fixtures, running
from bench.figures import Bench, Bound, Figure, side_by_side
from bench.tasks import nothing
from dispatcher import api
from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import Delivery
from project.processes import Stack

CALLS = 5_000
WORKERS = (1, 2, 4)
KEYS = (1, 2, 4, 8)
QUEUES, RULES = 24, 12


def scaling(bench: Bench) -> Iterator[Figure]:
    """Drain a backlog with more workers, with more keys a call, and from many queues under many rules."""
    calls, rounds = bench.effort.calls(CALLS), bench.effort.long_rounds
    figure = partial(Figure, unit="calls/s", side=Bound.AT_LEAST)
    one = 0.0
    for number in WORKERS:
        with workers(bench, number):
            rate = median(_drain(["key:0"], [fixtures.QUEUE], calls) for _ in range(rounds))
        one = one or rate
        yield figure(name=f"direct: drain with workers: {number}", ours=rate, reference=one, bound=0.9)
    with workers(bench, 1):
        for count in KEYS:
            ours, reference = side_by_side(
                partial(_drain, [f"key:{number}" for number in range(count)], [fixtures.QUEUE], calls),
                partial(_drain, ["key:0"], [fixtures.QUEUE], calls),
                rounds=rounds,
            )
            yield figure(name=f"direct: drain with keys a call: {count}", ours=ours, reference=reference, bound=0.5)
        queues = [f"{fixtures.QUEUE}.{number}" for number in range(QUEUES)]
    with workers(bench, 1, queues=[fixtures.QUEUE, *queues]):
        ours, reference = side_by_side(
            partial(_drain, [f"key:{number}" for number in range(RULES)], queues, calls, a_call=2),
            partial(_drain, ["key:0"], [fixtures.QUEUE], calls),
            rounds=rounds,
        )
        yield figure(
            name=f"direct: {QUEUES} queues, {RULES} rules, two keys a call", ours=ours, reference=reference, bound=0.8
        )


@contextmanager
def workers(bench: Bench, count: int, *, queues: Sequence[str] = (fixtures.QUEUE,)) -> Iterator[None]:
    """Have so many workers of two processes each that take the calls of these queues directly."""
    fixtures.clear()
    for name in queues:
        Queue.objects.update_or_create(name=name, defaults={"delivery": Delivery.DIRECT})
    for number in range(max(*KEYS, RULES)):
        RateLimitKey.objects.declare(f"key:{number}", concurrency=running.AMPLE, rate=(running.AMPLE, running.PERIOD))
    with ExitStack() as at_end, Stack(bench.run_dir) as stack:
        at_end.callback(Queue.objects.filter(name__in=queues).delete)
        for number in range(count):
            stack.start_worker(f"worker{number}", queues=queues, concurrency=2)
        stack.wait_ready()
        time.sleep(feeding.SETTLE_S)
        yield


def _drain(keys: Sequence[str], queues: Sequence[str], calls: int, *, a_call: int | None = None) -> float:
    """Return the calls per second of a backlog that is spread over the queues.

    a_call: how many of the keys each call spends, in turn; all of them by default.
    """
    spent = cycle(keys)
    CallQueue.objects.all().delete()
    for key in keys:
        api.pause(key)
    CallQueue.objects.send_many(
        Call(task=nothing, queue=queue, keys=sorted(set(islice(spent, a_call or len(keys)))))
        for queue in islice(cycle(queues), calls)
    )
    began = time.time()
    for key in keys:
        api.resume(key)
    running.wait_for(running.count_ended, calls)
    return calls / (running.last_end() - began)
