"""Celery's own retries become counted waits."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Task
from celery.exceptions import MaxRetriesExceededError

from dispatcher.models import CallQueue, Slot
from dispatcher.states import State
from tests.builders import SECOND, committed, key, seen, states
from tests.steps.conftest import Broker
from tests.steps.doings import autoretry, deliver, doings, patient, raising, ran, retrying, sent, wake

pytestmark = [committed, pytest.mark.usefixtures("nothing_ran")]


def test_a_retry_becomes_a_wait_in_the_queue_and_is_counted() -> None:
    key("api", concurrency=1)
    doings[:] = [retrying(countdown=90, exc=OSError("flaky"))]
    call = sent(keys=["api"])
    assert deliver(call).state == "RETRY"
    stored = seen(call)
    assert (stored.state, stored.attempt, stored.ticket) == (State.RETRYABLE, 1, None)
    assert timedelta(seconds=85) < stored.scheduled_at - stored.started_at <= timedelta(seconds=91)
    assert (stored.error["type"], stored.error["message"]) == ("OSError", "flaky")
    assert not Slot.objects.exists()
    assert len(ran) == 1
    wake(call)
    doings[:] = [lambda _: "done"]
    assert deliver(call).state == "SUCCESS"
    assert [retries for retries, _ in ran] == [0, 1]
    assert seen(call).attempt == 2


def test_a_retry_leaves_nothing_at_the_broker(broker: Broker) -> None:
    doings[:] = [retrying(countdown=0)]
    call = sent()
    broker.take()
    deliver(call)
    assert broker.take() == []


def test_a_retry_without_a_cause_names_what_was_being_handled() -> None:
    def doing(self: Task) -> None:
        try:
            {}["inner"]
        except KeyError:
            self.retry(countdown=1)

    doings[:] = [doing]
    call = sent()
    deliver(call)
    assert seen(call).error["type"] == "KeyError"


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 180),
        ({"countdown": 5}, 5),
        ({"countdown": 0}, 0),
        ({"eta": "aware"}, 60),
        ({"eta": "naive"}, 60),
    ],
    ids=str,
)
def test_a_retry_waits_for_as_long_as_it_says(options: dict[str, Any], seconds: int) -> None:
    if "eta" in options:
        later = datetime.now(UTC) + 60 * SECOND
        options = {"eta": later if options["eta"] == "aware" else later.astimezone().replace(tzinfo=None)}
    doings[:] = [retrying(**options)]
    call = sent()
    deliver(call)
    stored = seen(call)
    assert abs((stored.scheduled_at - stored.started_at).total_seconds() - seconds) < 5


def test_a_task_has_a_default_wait_of_its_own() -> None:
    doings[:] = [retrying()]
    call = sent(patient)
    deliver(call)
    assert 35 < (seen(call).scheduled_at - seen(call).started_at).total_seconds() <= 41


@pytest.mark.parametrize("exc", [None, OSError("flaky")], ids=["no cause", "a cause"])
def test_max_retries_bound_the_attempts(exc: Exception | None) -> None:
    doings[:] = [retrying(exc=exc, countdown=0, max_retries=2)]
    call = sent()
    results = []
    for number in range(3):
        results.append(deliver(call))
        if number < 2:
            wake(call)
    assert [result.state for result in results] == ["RETRY", "RETRY", "FAILURE"]
    assert isinstance(results[-1].result, OSError if exc else MaxRetriesExceededError)
    assert (seen(call).state, seen(call).attempt) == (State.DISCARDED, 3)
    assert [retries for retries, _ in ran] == [0, 1, 2]


def test_max_retries_of_none_bound_nothing() -> None:
    doings[:] = [retrying(countdown=0)]
    call = sent(patient)
    CallQueue.objects.filter(id=call.id).update(attempt=1_000)
    assert deliver(call).state == "RETRY"
    assert states([call]) == [State.RETRYABLE]


def test_a_policy_of_the_call_bounds_them_too() -> None:
    doings[:] = [retrying(countdown=0)]
    call = sent(patient, retry={"max_attempts": 1})
    result = deliver(call)
    assert result.state == "FAILURE"
    assert states([call]) == [State.DISCARDED]


def test_a_retry_may_be_asked_for_without_raising() -> None:
    def doing(self: Task) -> str:
        self.retry(countdown=5, throw=False)
        return "went on"

    doings[:] = [doing]
    assert deliver(sent()).result == "went on"


def test_autoretry_becomes_a_counted_wait_with_its_back_off() -> None:
    doings[:] = [raising(OSError("flaky"))]
    call = sent(autoretry)
    waits = []
    for number in range(3):
        result = deliver(call)
        if number < 2:
            waits.append(round((seen(call).scheduled_at - seen(call).started_at).total_seconds()))
            assert result.state == "RETRY"
            wake(call)
    assert waits == [7, 14]
    assert result.state == "FAILURE"
    assert isinstance(result.result, OSError)
    assert (seen(call).state, seen(call).attempt) == (State.DISCARDED, 3)


def test_autoretry_leaves_other_errors_to_the_policy_of_the_call() -> None:
    doings[:] = [raising(ValueError("bad"))]
    call = sent(autoretry, retry={"max_attempts": 1})
    assert deliver(call).state == "FAILURE"
    assert states([call]) == [State.DISCARDED]
