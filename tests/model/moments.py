"""What comes at the moment when time opens a key: a window forgets a start, or a block ends."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.model.pair import STEP, Pair, Worker
from tests.model.rules import MARGIN, QUEUES, RAMP, RAMP_STEPS, Lane, Retry, Rules
from tests.model.strategies import NAMES, numbers, retries, seconds

queues = st.sampled_from([queue for queue, delivery in QUEUES.items() if delivery != "broker"])


class Moments:
    """Calls that come, and are taken, just then."""

    pair: Pair
    rules: Rules
    workers: Sequence[Worker]
    send: Callable[[list[dict[str, Any]], str], None]
    tick: Callable[[], None]
    take_once: Callable[..., Any]
    close_or_open: Callable[[str, timedelta, str], None]

    @precondition(lambda self: self.windows() and not self.pair.touched)
    @rule(
        number=numbers,
        priorities=st.sampled_from([(0, 5), (5, 0)]),
        late=st.sampled_from([-STEP, seconds(0), MARGIN / 2, MARGIN / 2, MARGIN - STEP, 6 * MARGIN, 6 * MARGIN]),
        queue=queues,
        retry=retries,
    )
    def send_as_a_window_ends(
        self, number: int, priorities: tuple[int, int], late: timedelta, queue: str, retry: Retry
    ) -> None:
        """Let a window fill up, and another call come when it is about to forget a start."""
        name = self.windows()[number % len(self.windows())]
        lanes = [Lane(queue, priority, "wait", (name,)) for priority in priorities]
        before, then = ({"lane": lane, "cost": 1, "retry": retry} for lane in lanes)
        key, workers = self.rules.keys[name], [worker for worker in self.workers if queue in worker.queues]
        most, period = key.own.rate
        self.send([before] * (most + 1), "together")
        self.take_once(workers[0], 9)
        ends = [start.at + period for start in key.starts if start.at + period + MARGIN > self.pair.now]
        self.pair.now = max(self.pair.now, min(ends, default=self.pair.now) + late - 2 * STEP)
        self.send([then], "alone")
        self.take_once(workers[-1], 1)

    def windows(self) -> list[str]:
        """Return the keys that nothing limits but a window."""
        now = self.pair.now
        limits = {name: key.limits(now) for name, key in self.rules.keys.items() if not key.is_closed(now)}
        return [
            name
            for name, each in limits.items()
            if each == self.rules.keys[name].own and each.rate and ":" not in name
            if each.concurrency is None and each.throttle is None
        ]

    @precondition(lambda self: not self.pair.touched)
    @rule(
        name=st.sampled_from([name for name in NAMES if ":" not in name]),
        step=st.integers(0, 3),
        queue=queues,
        retry=retries,
    )
    def take_after_a_block(self, name: str, step: int, queue: str, retry: Retry) -> None:
        """Let several calls wait for the end of a block: it lets one go, then two, then four."""
        self.close_or_open(name, seconds(1), "block")
        self.send([{"lane": Lane(queue, 0, "wait", (name,)), "cost": 1, "retry": retry}] * 3, "together")
        self.pair.now = max(self.pair.now, self.rules.keys[name].blocked_until + RAMP / RAMP_STEPS * step)
        self.tick()
        self.take_once(next(worker for worker in self.workers if queue in worker.queues), 9)
