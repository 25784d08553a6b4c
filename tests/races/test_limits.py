"""Invariant 1: whatever dispenses and works at once, no limit of any key is ever exceeded."""

import random
from collections.abc import Sequence
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from pytest_django import Settings

from dispatcher import engine
from dispatcher.ending import InFlight
from dispatcher.engine import ends
from dispatcher.lifecycle.finish import Requeue
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.request import Call
from tests.races.audit import audit, use_now
from tests.races.lockstep import at_once, concurrent
from tests.races.traffic import tick_and_work, write

pytestmark = [concurrent, pytest.mark.pooler]


@pytest.fixture
def admitted_again(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """Note the calls that were claimed too late for their start and go back, which changes the order of admissions."""
    requeue, noted = ends.requeue, list[UUID]()

    def note(calls: Sequence[InFlight], reason: Requeue, **options: Any) -> set[UUID]:
        noted.extend(each.call_id for each in calls)
        return requeue(calls, reason, **options)

    monkeypatch.setattr(ends, "requeue", note)
    return noted


@pytest.mark.slow
def test_sixteen_dispensers_keep_the_limits_of_all_keys_of_a_call_at_once(
    settings: Settings, admitted_again: list[UUID]
) -> None:
    settings.DISPATCHER = {"margin": 0.01, "tick": 0.2}
    RateLimitKey.objects.declare("few", concurrency=4)
    RateLimitKey.objects.declare("some", rate=(60, 0.25), concurrency=12)
    RateLimitKey.objects.declare("even", throttle=(300, 1))
    RateLimitKey.objects.declare("queue:celery", concurrency=14)
    dice = random.Random(2)  # noqa: S311 -- not for secrets
    names = ("few", "some", "even")
    costs = {"few": (1, 2, 4), "some": (1, 2), "even": (1,)}
    CallQueue.objects.send_many(
        Call(
            task="noop",
            keys={name: dice.choice(costs[name]) for name in dice.sample(names, dice.randint(0, 3))},
            priority=dice.choice((0, 0, 5)),
        )
        for _ in range(300)
    )
    at_once(*[tick_and_work] * 16)
    assert Lane.objects.count() > 8
    audit(is_fifo=not admitted_again)


@pytest.mark.slow
def test_trips_that_see_the_same_room_give_it_away_once() -> None:
    """Each of sixteen queues has a dispenser of its own; only the key's lock is between them."""
    queues = [f"queue-{number}" for number in range(16)]
    for number in range(10):
        key = f"api:{number}"
        RateLimitKey.objects.declare(key, concurrency=5, rate=(5, 3600))
        for queue in queues:
            write([[key]], queue=queue)
        at_once(*[partial(engine.dispense, queues=[queue]) for queue in queues])
        engine.tick()
        assert use_now([key]) == {key: 5}
    audit(has_ended=False)
