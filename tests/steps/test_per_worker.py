"""Limits per worker: whom a call wakes, and what is refused and reported. What starts is in tests/behaviour."""

import pytest

from dispatcher import reports
from dispatcher.errors import CallInvalid
from dispatcher.groups import any_of
from dispatcher.lanes import mixture
from dispatcher.lifecycle import heartbeat
from dispatcher.models import RateLimitKey
from tests.builders import HERE, committed
from tests.steps.feeding import send, take

pytestmark = [committed, pytest.mark.usefixtures("direct")]


def test_the_broker_is_refused_for_a_queue_whose_calls_may_choose_such_a_key() -> None:
    RateLimitKey.objects.declare("egress:1", per_worker=2)
    send(1, keys=[any_of("egress:*")])
    with pytest.raises(CallInvalid, match="'egress:1'"):
        mixture.check_delivery("mail")


def test_a_call_that_waits_for_another_worker_names_the_key() -> None:
    RateLimitKey.objects.declare("exports", per_worker=1)
    heartbeat.record(HERE, [])
    calls = send(2, keys=["exports"])
    take(2)
    wait = reports.why_waiting(calls[1].pk)
    assert wait is not None
    assert (wait.limited_by, wait.stopped_by) == ("exports", None)
    (status,) = reports.rate_limit_status(["exports"])
    assert status.as_json()["per_worker"] == {"limit": 1, "active": 1}
