"""Errors: each names what is wrong and what to do, and comes out of another process as it went in."""

import inspect
import pickle
from datetime import timedelta

import pytest
from celery import current_app

from dispatcher import errors
from dispatcher.ojs import errors as ojs_errors

pytestmark = pytest.mark.django

MADE = [
    errors.CallInvalid("args", "must be a list."),
    errors.CallNeverRuns("keys['api']", "a cost of 5 can never run."),
    errors.CallTooLarge("args", "too large."),
    errors.FieldInvalid("args", "must be a list."),
    errors.PolicyInvalid("rate.limit", "must be a whole number."),
    errors.UnknownKey(["api", "b"], ["apis", "c"]),
    errors.KeyNotFound("api", ["apis", "c"]),
    errors.CallNotEnded("01", "active"),
    errors.UnknownMethod("sms", ["get", "post"]),
    errors.ConfigurationError("DISPATCHER['x'] is not a setting."),
    errors.RowLocked("the rate limit key 'api'", 10.0),
    errors.RateLimited(30, key="api", reason="slow down"),
    errors.WorkerLost("its lease ran out"),
    errors.TaskExited("the task ended with SystemExit(1)"),
    errors.TicketReplaced("01"),
    errors.DatabaseNotReady("The database 'other' is sqlite.", "Set another one.", database="other"),
    ojs_errors.AttemptTimedOut("it ran for longer than its timeout"),
    ojs_errors.LeaseLapsed("lease expired without a heartbeat"),
    ojs_errors.DuplicateCall("01", "available", "key"),
    ojs_errors.QueueFull("mail", 5, 5, "reject"),
    errors.AnswerTooLarge("too large"),
    errors.TargetRefused("'10.0.0.1' is no public address"),
    ojs_errors.WebhookRefused("the receiver answered 410 Gone"),
]


def test_every_error_is_tried_here_and_has_one_base() -> None:
    found = [*inspect.getmembers(errors, inspect.isclass), *inspect.getmembers(ojs_errors, inspect.isclass)]
    classes = {each for _, each in found if each.__module__ in (errors.__name__, ojs_errors.__name__)}
    assert {type(error) for error in MADE} == classes - {errors.DispatcherError}
    assert all(issubclass(each, errors.DispatcherError) for each in classes)


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_says_when_it_comes_and_travels_between_processes_with_its_facts(
    error: errors.DispatcherError,
) -> None:
    assert (type(error).__doc__ or "").strip().endswith((".", "!"))
    assert str(error)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 -- as Celery's pool does
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize(
    "error",
    # Of these Celery has only the words then: some facts have no place.
    [error for error in MADE if not inspect.getfullargspec(type(error)).kwonlyargs],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_task_comes_out_of_a_result_backend_as_it_went_in(error: errors.DispatcherError) -> None:
    backend = current_app.backend
    stored = backend.decode(backend.encode(backend.prepare_exception(error, serializer="json")))
    again = backend.exception_to_python(stored)
    assert (str(again), repr(again), vars(again)) == (str(error), repr(error), vars(error))


@pytest.mark.parametrize("kind", [errors.CallInvalid, errors.CallNeverRuns, errors.CallTooLarge, errors.PolicyInvalid])
def test_what_is_wrong_with_a_field_is_a_value_error_that_names_it(kind: type[errors.CallInvalid]) -> None:
    error = kind("args[0]", "is not JSON.")
    assert isinstance(error, ValueError)
    assert (error.field, str(error)) == ("args[0]", "args[0]: is not JSON.")


def test_an_unknown_key_says_how_to_declare_it() -> None:
    error = errors.UnknownKey(["api", "b"])
    assert error.names == ["api", "b"]
    assert error.field == "keys"
    for words in ("'api', 'b'", "RateLimitKey.objects.declare", 'DISPATCHER["keys"]', "without any limit"):
        assert words in str(error)


def test_what_is_not_found_is_a_lookup_error() -> None:
    assert isinstance(errors.KeyNotFound("api"), LookupError)
    assert "rate_limit_status" in str(errors.KeyNotFound("api"))
    error = errors.UnknownMethod("sms", ["get", "post"])
    assert isinstance(error, LookupError)
    assert "known are get, post" in str(error)
    assert "dispatcher.handlers.register" in str(error)


def test_a_wait_is_a_number_of_seconds_or_a_timedelta() -> None:
    assert errors.RateLimited(1.5).retry_after == timedelta(seconds=1.5)
    assert errors.RateLimited(timedelta(minutes=1)).retry_after == timedelta(minutes=1)
    assert str(errors.RateLimited(90)) == "rate limited for 90 s"
    assert str(errors.RateLimited(1, reason="slow down")) == "slow down"
    for wrong in (-1, timedelta(seconds=-1)):
        with pytest.raises(ValueError, match="must not be negative"):
            errors.RateLimited(wrong)
