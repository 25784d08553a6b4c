"""Celery's own retries become counted waits."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Task
from celery.exceptions import MaxRetriesExceededError
from kombu import Queue

from dispatcher.errors import RateLimited
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.states import State
from tests.builders import SECOND, committed, key, lane_of, seen, slots_of, states
from tests.steps.conftest import Broker
from tests.steps.sample_tasks import (
    autoretry,
    autoretry_elsewhere,
    behaviours,
    deliver,
    patient,
    raising,
    ran,
    retrying,
    sent,
    takes,
    wake,
)

pytestmark = [committed, pytest.mark.usefixtures("nothing_ran"), pytest.mark.celery]


def test_a_retry_becomes_a_wait_in_the_queue_and_is_counted() -> None:
    key("api", concurrency=1)
    behaviours[:] = [retrying(countdown=90, exc=OSError("flaky"))]
    call = sent(keys=["api"])
    assert deliver(call).state == "RETRY"
    stored = seen(call)
    assert (stored.state, stored.attempt, stored.ticket) == (State.RETRYABLE, 1, None)
    assert timedelta(seconds=85) < stored.scheduled_at - stored.started_at <= timedelta(seconds=91)
    assert (stored.error["type"], stored.error["message"]) == ("OSError", "flaky")
    assert not Slot.objects.exists()
    assert len(ran) == 1
    wake(call)
    behaviours[:] = [lambda _: "done"]
    assert deliver(call).state == "SUCCESS"
    assert [retries for retries, _ in ran] == [0, 1]
    assert seen(call).attempt == 2


def test_a_retry_may_name_the_exchange_of_its_queue_as_chord_unlock_does_and_no_other() -> None:
    behaviours[:] = [retrying(countdown=0, exchange_type="direct"), retrying(countdown=0, exchange_type="topic")]
    call = sent()
    assert deliver(call).state == "RETRY"
    wake(call)
    deliver(call)
    assert seen(call).error["type"] == "CallInvalid"
    assert "exchange_type: is that of the exchange of the queue" in seen(call).error["message"]


def test_a_retry_without_a_cause_names_what_was_being_handled() -> None:
    def behaviour(self: Task) -> None:
        try:
            {}["inner"]
        except KeyError:
            self.retry(countdown=1)

    behaviours[:] = [behaviour]
    call = sent()
    deliver(call)
    assert seen(call).error["type"] == "KeyError"


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 180),
        ({"countdown": 5}, 5),
        ({"countdown": 1}, 1),
        ({"eta": "aware"}, 60),
        ({"eta": "naive"}, 60),
    ],
    ids=str,
)
def test_a_retry_waits_for_as_long_as_it_says(options: dict[str, Any], seconds: int) -> None:
    if "eta" in options:
        later = datetime.now(UTC) + 60 * SECOND
        options = {"eta": later if options["eta"] == "aware" else later.astimezone().replace(tzinfo=None)}
    behaviours[:] = [retrying(**options)]
    call = sent()
    deliver(call)
    stored = seen(call)
    assert abs((stored.scheduled_at - stored.started_at).total_seconds() - seconds) < 5


def test_a_retry_without_a_wait_goes_on_at_once() -> None:
    behaviours[:] = [retrying(countdown=0)]
    call = sent()
    assert deliver(call).state == "RETRY"
    assert states([call]) == [State.DISPATCHED]


def test_a_task_has_a_default_wait_of_its_own() -> None:
    behaviours[:] = [retrying()]
    call = sent(patient)
    deliver(call)
    assert 35 < (seen(call).scheduled_at - seen(call).started_at).total_seconds() <= 41


@pytest.mark.parametrize("exc", [None, OSError("flaky")], ids=["no cause", "a cause"])
def test_max_retries_bound_the_attempts(exc: Exception | None) -> None:
    behaviours[:] = [retrying(exc=exc, countdown=0, max_retries=2)]
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


GIVEN_UP = [(None, MaxRetriesExceededError), (OSError("flaky"), OSError)]


@pytest.mark.parametrize(("exc", "raised"), GIVEN_UP, ids=["no cause", "a cause"])
@pytest.mark.parametrize("throw", [True, False])
def test_a_task_can_catch_that_no_retry_is_left(exc: Exception | None, raised: type[Exception], throw: Any) -> None:
    def behaviour(self: Task) -> str:
        try:
            raise self.retry(exc=exc, countdown=0, max_retries=0, throw=throw)
        except raised:
            return "gave up"

    behaviours[:] = [behaviour]
    call = sent()
    assert deliver(call).result == "gave up"
    assert (seen(call).state, seen(call).result, seen(call).errors) == (State.COMPLETED, "gave up", [])


@pytest.mark.parametrize(("exc", "raised"), GIVEN_UP, ids=["no cause", "a cause"])
def test_what_a_task_raises_when_no_retry_is_left_ends_its_call(exc: Exception | None, raised: type[Exception]) -> None:
    def behaviour(self: Task) -> None:
        try:
            self.retry(exc=exc, countdown=0, max_retries=0)
        except raised as error:
            message = "refunded"
            raise LookupError(message) from error

    behaviours[:] = [behaviour]
    call = sent()
    assert isinstance(deliver(call).result, LookupError)
    assert (seen(call).state, seen(call).error["type"]) == (State.DISCARDED, "LookupError")


def test_autoretry_adds_nothing_when_no_retry_is_left() -> None:
    behaviours[:] = [retrying(exc=OSError("flaky"), countdown=0, max_retries=0)]
    call = sent(autoretry)
    assert isinstance(deliver(call).result, OSError)
    assert states([call]) == [State.DISCARDED]


@pytest.mark.parametrize("error", [RateLimited(30), OSError("flaky")], ids=["stop", "error"])
def test_what_a_retry_was_asked_for_ends_the_call_when_none_is_left(error: Exception) -> None:
    behaviours[:] = [retrying(exc=error, countdown=0, max_retries=0)]
    call = sent()
    assert deliver(call).result is error
    assert (seen(call).state, seen(call).error["type"]) == (State.DISCARDED, type(error).__name__)


def test_max_retries_of_none_bound_nothing() -> None:
    behaviours[:] = [retrying(countdown=1)]
    call = sent(patient)
    CallQueue.objects.filter(id=call.id).update(attempt=1_000)
    assert deliver(call).state == "RETRY"
    assert states([call]) == [State.RETRYABLE]


def test_a_policy_of_the_call_bounds_them_too() -> None:
    behaviours[:] = [retrying(countdown=0)]
    call = sent(patient, retry={"max_attempts": 1})
    result = deliver(call)
    assert result.state == "FAILURE"
    assert states([call]) == [State.DISCARDED]


def test_a_retry_that_is_asked_for_without_raising_comes_when_the_task_has_returned() -> None:
    went_on = []

    def behaviour(self: Task) -> str:
        self.retry(countdown=90, throw=False, args=[2])
        went_on.append(1)
        return "went on"

    behaviours[:] = [behaviour]
    call = sent(args=[1])
    assert deliver(call).state == "RETRY"
    assert went_on == [1]
    assert (seen(call).state, seen(call).attempt, seen(call).args) == (State.RETRYABLE, 1, [2])


def test_a_failure_after_such_a_retry_is_the_failure() -> None:
    def behaviour(self: Task) -> None:
        self.retry(countdown=90, throw=False)
        raise KeyError("inner")

    behaviours[:] = [behaviour]
    call = sent(retry={"max_attempts": 1})
    deliver(call)
    assert (seen(call).state, seen(call).error["type"]) == (State.DISCARDED, "KeyError")


def test_autoretry_becomes_a_counted_wait_with_its_back_off() -> None:
    behaviours[:] = [raising(OSError("flaky"))]
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
    behaviours[:] = [raising(ValueError("bad"))]
    call = sent(autoretry, retry={"max_attempts": 1})
    result = deliver(call)
    assert (result.state, type(result.result)) == ("FAILURE", ValueError)
    assert states([call]) == [State.DISCARDED]


# What the next attempt is made with


def asks(task: Task, **options: Any) -> CallQueue:
    """Return a call whose only attempt so far asked to be tried again with these options."""
    behaviours[:] = [retrying(countdown=0, **options)]
    call = sent(task, args=[1, 2], kwargs={"c": 3})
    deliver(call)
    return seen(call)


@pytest.mark.parametrize(
    ("options", "args", "kwargs"),
    [
        ({}, [1, 2], {"c": 3}),
        ({"args": [8, 9], "kwargs": {}}, [8, 9], {}),
        ({"args": (8, 9)}, [8, 9], {"c": 3}),
        ({"kwargs": {"c": 4}}, [1, 2], {"c": 4}),
        ({"kwargs": {"more": "x"}}, [1, 2], {"more": "x"}),
    ],
    ids=str,
)
def test_a_retry_replaces_the_arguments_that_it_names(options: Any, args: list[int], kwargs: Any) -> None:
    call = asks(takes, **options)
    assert (call.args, call.kwargs) == (args, kwargs)
    ran.clear()
    wake(call)
    behaviours[:] = [lambda _: "done"]
    deliver(call)
    assert (seen(call).state, ran) == (State.COMPLETED, [(1, tuple(args), kwargs)])


@pytest.mark.parametrize(
    "options",
    [
        {"args": (8, 9)},
        {"args": [8, 9, 7]},
        {"kwargs": {"b": 9}},
        {"kwargs": {"a": 8, "c": 5}},
        {"kwargs": {"more": "x"}},
        {"args": [], "kwargs": {"a": 8, "b": 9}},
        {"args": [8], "kwargs": {"b": 9}},
    ],
    ids=str,
)
def test_a_retry_keeps_of_the_other_arguments_what_celerys_own_keeps(options: Any) -> None:
    behaviours[:] = [retrying(countdown=0, **options), lambda _: "done"]
    plain = takes.apply(args=[1, 2], kwargs={"c": 3})
    sent_by_celery = [run[1:] for run in ran]
    ran.clear()
    call = sent(takes, args=[1, 2], kwargs={"c": 3})
    deliver(call)
    if seen(call).error["type"] != "TypeError":
        wake(call)
        deliver(call)
    assert [run[1:] for run in ran] == sent_by_celery
    assert (seen(call).state == State.COMPLETED) == plain.successful()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"args": [object(), 2]}, "CallInvalid"),
        ({"args": "text"}, "CallInvalid"),
        ({"kwargs": [1]}, "CallInvalid"),
        ({"args": ["x" * 2_000_000, 1, 2], "kwargs": {}}, "CallTooLarge"),
        ({"args": [1], "kwargs": {}}, "TypeError"),
        ({"args": [7, 8, 9, 10]}, "TypeError"),
        ({"queue": ""}, "CallInvalid"),
        ({"priority": 101}, "CallInvalid"),
        ({"expires": "soon"}, "CallInvalid"),
        ({"expires": 1e20}, "CallInvalid"),
        ({"soft_time_limit": 5}, "TypeError"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_a_retry_can_not_have_is_refused_by_name_and_changes_nothing(options: Any, error: str) -> None:
    call = asks(takes, **options)
    assert (call.state, call.error["type"]) == (State.RETRYABLE, error)
    assert next(iter(options)) in call.error["message"] or options.keys() <= {"args", "kwargs"}
    assert (call.args, call.kwargs, call.queue, call.priority) == ([1, 2], {"c": 3}, "celery", 0)


@pytest.mark.parametrize("queue", ["slow", Queue("slow")], ids=type)
def test_a_retry_moves_the_call_to_another_queue_and_priority(queue: Any, settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"queue:slow": {"concurrency": 1}}}
    key("api", concurrency=1)
    behaviours[:] = [retrying(countdown=0, queue=queue, priority=-5)]
    call = sent(takes, args=[1, 2], kwargs={"c": 3}, keys=["api"])
    lane = lane_of(call)
    deliver(call)
    moved = seen(call)
    assert (moved.queue, moved.priority) == ("slow", -5)
    assert (lane_of(moved).queue, lane_of(moved).priority, lane_of(moved).key_ids) == ("slow", -5, lane.key_ids)
    assert lane_of(moved).id != lane.id
    wake(moved)
    assert set(slots_of(call)) == {RateLimitKey.objects.get(name=name).id for name in ("api", "queue:slow")}


@pytest.mark.parametrize("kind", ["seconds", "timedelta", "aware", "naive"])
def test_a_retry_sets_when_the_call_expires(kind: str) -> None:
    at = datetime.now(UTC) + timedelta(seconds=600)
    expires = {
        "seconds": 600,
        "timedelta": timedelta(seconds=600),
        "aware": at,
        "naive": at.replace(tzinfo=None),
    }[kind]
    assert abs((asks(takes, expires=expires).expires_at - at).total_seconds()) < 5


def test_the_last_retry_leaves_the_call_as_it_was() -> None:
    call = asks(takes, args=[8, 9], queue="slow", max_retries=0)
    assert (call.state, call.args, call.queue) == (State.DISCARDED, [1, 2], "celery")


def test_autoretry_hands_its_options_on() -> None:
    behaviours[:] = [raising(OSError("flaky"))]
    call = sent(autoretry_elsewhere)
    deliver(call)
    assert (seen(call).state, seen(call).queue) == (State.RETRYABLE, "slow")


def test_a_plain_retry_takes_every_option_of_celery(broker: Broker) -> None:
    behaviours[:] = [retrying(countdown=0, soft_time_limit=5), lambda _: "done"]
    assert takes.apply(args=[1, 2], kwargs={"c": 3}).get() == "done"
