"""Keys and lanes are created when they are needed first, and never twice; a rolled back send made nothing."""

from functools import partial

import pytest
from pytest_django import Settings

from dispatcher import engine
from dispatcher.models import CallQueue, RateLimitKey
from tests.races.audit import audit, use_now
from tests.races.lockstep import at_once, concurrent

pytestmark = concurrent


@pytest.fixture(autouse=True)
def _templates(settings: Settings) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 3}, "queue:mail": {"concurrency": 100}}}


def test_sixteen_first_senders_of_a_template_key_make_one_key_and_one_lane() -> None:
    for number in range(10):
        name = f"tenant:{number}"
        calls = at_once(*[partial(CallQueue.objects.send, "noop", keys=[name], queue="celery")] * 16)
        # On a machine that stands still for a moment one may have left its call to the tick.
        engine.place_unplaced()
        assert RateLimitKey.objects.filter(name=name).count() == 1
        assert len(set(CallQueue.objects.filter(id__in=[call.id for call in calls]).values_list("lane_id"))) == 1
        assert use_now([name]) == {name: 3}
    audit(has_ended=False)


def test_two_who_declare_a_key_at_once_get_the_same_one() -> None:
    for number in range(10):
        keys = at_once(
            *[partial(RateLimitKey.objects.declare, f"api:{number}", concurrency=size) for size in (1, 2)] * 8
        )
        assert len({(key.id, key.concurrency) for key in keys}) == 1
