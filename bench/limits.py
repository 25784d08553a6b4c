"""How much of a limit is used under a standing backlog, as a witness sees it, and whether it is kept."""

import time
from collections.abc import Iterator, Sequence
from statistics import median

from bench import fixtures
from bench.figures import Bench, Figure
from bench.tasks import visit
from bench.third_party import DIRECT, THROTTLE, WINDOW
from dispatcher import api
from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import Delivery
from project.processes import Stack
from project.witness.ledger import SECOND
from project.witness.server import Witness

WINDOWS = 3
PROCESSES = 4
POLL = 0.2
TIMEOUT = 30.0
"""Seconds by which the starts may be later than the limits ask for."""


def limits(bench: Bench) -> Iterator[Figure]:
    """Keep a backlog standing behind a window and behind a throttle, and read the witness's books."""
    fixtures.clear()
    yield from _limits(bench, "", bound=0.97)


def limits_direct(bench: Bench) -> Iterator[Figure]:
    """Do the same with a worker that takes the calls directly, without beat and dispenser."""
    fixtures.clear()
    Queue.objects.update_or_create(name=fixtures.QUEUE, defaults={"delivery": Delivery.DIRECT})
    try:
        yield from _limits(bench, DIRECT, bound=0.98)
    finally:
        Queue.objects.filter(name=fixtures.QUEUE).delete()


def _limits(bench: Bench, kind: str, *, bound: float) -> Iterator[Figure]:
    window, throttle = f"{kind}window", f"{kind}throttle"
    known = len(bench.witness.ledger.visits)
    windows = max(1, bench.effort.calls(WINDOWS))
    expected = {
        window: (windows + 1) * WINDOW.limit,
        throttle: windows * WINDOW.period // THROTTLE.spacing,
    }
    RateLimitKey.objects.declare(window, rate=(WINDOW.limit, WINDOW.period / SECOND))
    RateLimitKey.objects.declare(throttle, throttle=(THROTTLE.limit, THROTTLE.period / SECOND))
    for key, starts in expected.items():
        api.pause(key)
        CallQueue.objects.send_many(Call(task=visit, args=[key], keys=[key]) for _ in range(2 * starts))
    with Stack(bench.run_dir) as stack:
        stack.start_worker(queues=[fixtures.QUEUE], concurrency=PROCESSES)
        if not kind:
            stack.start_dispenser()
            stack.start_beat()
        stack.wait_ready()
        for key in expected:
            api.resume(key)
        seen = _watch(bench.witness, expected, windows * WINDOW.period / SECOND + TIMEOUT)
    took = apart(seen[window], windows * WINDOW.limit)
    spaced = (len(seen[throttle]) - 1) * SECOND / (seen[throttle][-1] - seen[throttle][0])
    for name, limit, rate in (
        ("a window", WINDOW, windows * WINDOW.limit * SECOND / took),
        ("a throttle", THROTTLE, spaced),
    ):
        what = f"{kind}starts under {name} of {limit.limit} in {limit.period // SECOND} s"
        yield Figure.rate(what, rate, limit.limit * SECOND / limit.period, bound, unit="starts/s")
    visits = bench.witness.ledger.visits[known:]
    broken = sum(len(each) for visit in visits for each in visit.broken.values())
    yield Figure.time(f"{kind}violations at the witness", broken, len(visits), 0, unit="starts")


def _watch(witness: Witness, expected: dict[str, int], patience: float) -> dict[str, list[int]]:
    """Wait until each key has seen what is expected, and return the times of its starts (ns), sorted.

    Raises TimeoutError naming how far each came.
    """
    deadline = time.monotonic() + patience
    while True:
        with witness.lock:
            seen = {key: sorted(visit.started for visit in witness.ledger.accounts[key].visits) for key in expected}
        if all(len(seen[key]) >= starts for key, starts in expected.items()):
            return seen
        if time.monotonic() > deadline:
            came = ", ".join(f"{len(seen[key])} of {starts} under {key}" for key, starts in expected.items())
            message = f"too few starts: {came}"
            raise TimeoutError(message)
        time.sleep(POLL)


def apart(starts: Sequence[float], distance: int) -> float:
    """Return the median time in which so many starts were made, wherever one begins to count."""
    return median(later - earlier for earlier, later in zip(starts, starts[distance:], strict=False))
