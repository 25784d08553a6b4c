"""Errors: each names what is wrong and what to do, and comes out of another process as it went in."""

import inspect
import pickle
from datetime import timedelta

import pytest

from dispatcher import errors
from dispatcher.errors import (
    AnswerTooLarge,
    AttemptTimedOut,
    CallInvalid,
    CallNeverRuns,
    CallNotEnded,
    CallTooLarge,
    ConfigurationError,
    DispatcherError,
    DuplicateCall,
    FieldInvalid,
    KeyNotFound,
    LeaseLapsed,
    PolicyInvalid,
    QueueFull,
    RateLimited,
    TargetRefused,
    TicketReplaced,
    UnknownKey,
    UnknownMethod,
    WebhookRefused,
    WorkerLost,
)

pytestmark = pytest.mark.django

MADE = [
    CallInvalid("args", "must be a list."),
    CallNeverRuns("keys['api']", "a cost of 5 can never run."),
    CallTooLarge("args", "too large."),
    FieldInvalid("args", "must be a list."),
    PolicyInvalid("rate.limit", "must be a whole number."),
    UnknownKey(["api", "b"]),
    KeyNotFound("api"),
    CallNotEnded("01", "active"),
    UnknownMethod("sms", ["get", "post"]),
    ConfigurationError("DISPATCHER['x'] is not a setting."),
    RateLimited(30, key="api", reason="slow down"),
    WorkerLost("its lease ran out"),
    TicketReplaced("01"),
    AttemptTimedOut("it ran for longer than its timeout"),
    LeaseLapsed("lease expired without a heartbeat"),
    DuplicateCall("01", "available", "key"),
    QueueFull("mail", 5, 5, "reject"),
    AnswerTooLarge("too large"),
    TargetRefused("'10.0.0.1' is no public address"),
    WebhookRefused("the receiver answered 410 Gone"),
]

every_error = pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
CLASSES = [
    each
    for _, each in inspect.getmembers(errors, inspect.isclass)
    if issubclass(each, DispatcherError) and each is not DispatcherError
]


def test_every_error_is_tried_here() -> None:
    assert {type(error) for error in MADE} == set(CLASSES)


@every_error
def test_an_error_has_one_base_and_says_when_and_what_to_do(error: DispatcherError) -> None:
    assert isinstance(error, DispatcherError)
    assert (type(error).__doc__ or "").strip().endswith((".", "!"))
    assert str(error)


@every_error
def test_an_error_travels_between_processes_with_its_facts(error: DispatcherError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 -- as Celery's pool does
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("kind", [CallInvalid, CallNeverRuns, CallTooLarge, PolicyInvalid])
def test_what_is_wrong_with_a_field_is_a_value_error_that_names_it(kind: type[CallInvalid]) -> None:
    error = kind("args[0]", "is not JSON.")
    assert isinstance(error, ValueError)
    assert (error.field, str(error)) == ("args[0]", "args[0]: is not JSON.")


def test_an_unknown_key_says_how_to_declare_it() -> None:
    error = UnknownKey(["api", "b"])
    assert error.names == ["api", "b"]
    assert error.field == "keys"
    for words in ("'api', 'b'", "RateLimitKey.objects.declare", 'DISPATCHER["keys"]', "without any limit"):
        assert words in str(error)


def test_what_is_not_found_is_a_lookup_error() -> None:
    assert isinstance(KeyNotFound("api"), LookupError)
    assert "rate_limit_status" in str(KeyNotFound("api"))
    error = UnknownMethod("sms", ["get", "post"])
    assert isinstance(error, LookupError)
    assert "known are get, post" in str(error)
    assert "dispatcher.handlers.register" in str(error)


def test_a_wait_is_a_number_of_seconds_or_a_timedelta() -> None:
    assert RateLimited(1.5).retry_after == timedelta(seconds=1.5)
    assert RateLimited(timedelta(minutes=1)).retry_after == timedelta(minutes=1)
    assert str(RateLimited(90)) == "rate limited for 90 s"
    assert str(RateLimited(1, reason="slow down")) == "slow down"
    for wrong in (-1, timedelta(seconds=-1)):
        with pytest.raises(ValueError, match="must not be negative"):
            RateLimited(wrong)
