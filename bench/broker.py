"""What delivery through the broker does beside Celery alone, with beat and a dispenser."""

from collections.abc import Iterator
from functools import partial

from bench import running
from bench.bare import Bare
from bench.figures import Bench, Figure, in_turns
from bench.running import Calls
from dispatcher.models import RateLimitKey
from dispatcher.states import Delivery
from project.processes import Stack

CALLS = 2_000
BACKLOG = 2_000
ONE_BY_ONE = 200


def broker(bench: Bench) -> Iterator[Figure]:
    """Measure one worker of two processes, side by side with workers of Celery alone."""
    calls, backlog = bench.effort.calls(CALLS), bench.effort.calls(BACKLOG)
    singly, rounds, few = bench.effort.calls(ONE_BY_ONE), bench.effort.rounds, bench.effort.long_rounds
    with Stack(bench.run_dir) as stack:
        alone, single = Bare(stack), Bare(stack, concurrency=1)
        with running.worker(stack, Delivery.BROKER):
            RateLimitKey.objects.declare("ample", concurrency=running.AMPLE)
            RateLimitKey.objects.declare("single", concurrency=1)
            ample, queued = Calls(["ample"]), Calls(["single"])
            ours, other = in_turns(partial(ample.end_to_end, calls), partial(alone.end_to_end, calls), rounds=few)
            yield Figure.rate("broker: end to end under a limit / bare Celery, prefetch 4", ours, other, 0.45)
            ours, other = in_turns(partial(ample.drain, backlog), partial(alone.drain, backlog), rounds=few)
            yield Figure.rate("broker: drain under a limit / bare Celery, prefetch 4", ours, other, 0.5)
            ours, other = in_turns(partial(queued.hand_over, singly), partial(single.hand_over, singly), rounds=rounds)
            yield Figure.time(
                "broker: end of a call to the next start at concurrency 1 / bare Celery, -c 1", ours, other, 2.5
            )
            ours, other = in_turns(partial(ample.sends, singly), partial(alone.sends, singly), rounds=rounds)
            yield Figure.time("broker: send under a limit / .delay()", ours, other, 1.5)
