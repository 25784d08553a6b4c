"""The Celery side: a dispatched task claims before it runs and finishes after; a plain one runs as always."""

import pickle
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
import requests
from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, WorkerLostError
from celery import Task, shared_task, signals
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry
from celery.result import EagerResult
from celery.worker import state as worker_state
from celery.worker.request import Request

from dispatcher import engine
from dispatcher.celery import DispatchedRequest, DispatchedTask
from dispatcher.errors import RateLimited
from dispatcher.lifecycle import publish
from dispatcher.models import CallQueue, Slot
from dispatcher.presence import held
from dispatcher.states import State
from tests.builders import SECOND, committed, go, key, seen, states, ticket_of
from tests.steps.conftest import Broker

pytestmark = committed

Doing = Callable[[Task], Any]
doings: list[Doing] = []
"""What the task does, attempt by attempt; the last one over and over."""
ran: list[Any] = []
"""(retries, args) of every run of the task."""


@shared_task(name="tests.do", bind=True)
def do(self: Task, *args: Any) -> Any:
    ran.append((self.request.retries, args))
    return doings[min(len(ran), len(doings)) - 1](self)


@shared_task(
    name="tests.autoretry", bind=True, autoretry_for=(OSError,), max_retries=2, retry_backoff=7, retry_jitter=False
)
def autoretry(self: Task) -> Any:
    ran.append((self.request.retries, ()))
    return doings[0](self)


@shared_task(name="tests.patient", bind=True, default_retry_delay=40, max_retries=None)
def patient(self: Task) -> Any:
    ran.append((self.request.retries, ()))
    return doings[0](self)


@pytest.fixture(autouse=True)
def _nothing_ran() -> Iterator[None]:
    ran.clear()
    doings[:] = [lambda _: "done"]
    yield
    worker_state.reserved_requests.clear()


def raising(error: BaseException) -> Doing:
    def doing(_: Task) -> None:
        raise error

    return doing


def retrying(*args: Any, **options: Any) -> Doing:
    def doing(self: Task) -> None:
        raise self.retry(*args, **options)

    return doing


def sent(task: Any = do, **fields: Any) -> CallQueue:
    """Send a call that is admitted at once."""
    call = seen(CallQueue.objects.send(task, **fields))
    assert call.state == State.DISPATCHED
    return call


def deliver(call: CallQueue, ticket: UUID | None = None) -> EagerResult:
    """Run a call's message as a worker does, and return what Celery made of it."""
    call = seen(call)
    return call_task(call).apply(
        args=call.args,
        task_id=str(call.id),
        retries=call.attempt,
        headers={publish.TICKET_HEADER: str(ticket or ticket_of(call))},
    )


def call_task(call: CallQueue) -> Task:
    return {task.name: task for task in (do, autoretry, patient)}[call.task]


def wake(call: CallQueue) -> None:
    """Let a call that waits for its next attempt go."""
    CallQueue.objects.filter(id=call.id, state=State.RETRYABLE).update(state=State.AVAILABLE)
    assert go(call) == [call.id]


# A task without a call


def test_a_task_that_is_called_or_applied_without_a_call_runs_as_always() -> None:
    assert do(1) == "done"
    assert do.apply(args=[2]).get() == "done"
    assert [args for _, args in ran] == [(1,), (2,)]
    assert not CallQueue.objects.exists()


def test_a_delay_goes_to_the_broker_as_always(broker: Broker) -> None:
    do.delay(1)
    (message,) = broker.take()
    assert publish.TICKET_HEADER not in message.headers
    assert message.payload[0] == [1]
    assert not CallQueue.objects.exists()


def test_a_plain_task_retries_as_celery_does() -> None:
    doings[:] = [retrying(countdown=0), lambda _: "done"]
    assert do.apply().get() == "done"
    assert [retries for retries, _ in ran] == [0, 1]
    doings[:] = [retrying(exc=KeyError("bad"), max_retries=0)]
    with pytest.raises(KeyError):
        do.apply().get()
    assert not CallQueue.objects.exists()


def test_a_ticket_that_is_no_uuid_is_none() -> None:
    assert do.apply(headers={publish.TICKET_HEADER: "no"}).get() == "done"


def test_a_task_calls_another_directly_within_its_own_attempt() -> None:
    doings[:] = [lambda _: do(2), lambda _: "inner"]
    call = sent(args=[1])
    assert deliver(call).result == "inner"
    assert (seen(call).state, seen(call).attempt) == (State.COMPLETED, 1)


# A task with a call


def test_a_dispatched_task_is_claimed_run_and_finished() -> None:
    key("api", concurrency=1)
    call = sent(args=[1, "two"], keys=["api"])
    result = deliver(call)
    assert (result.state, result.result) == ("SUCCESS", "done")
    assert ran == [(0, (1, "two"))]
    stored = seen(call)
    assert (stored.state, stored.attempt, stored.result) == (State.COMPLETED, 1, "done")
    assert not Slot.objects.exists()


def test_a_call_is_active_while_its_task_runs() -> None:
    doings[:] = [lambda self: seen(CallQueue(id=self.request.id)).state]
    assert deliver(sent()).result == State.ACTIVE


def test_a_stale_or_duplicate_delivery_runs_nothing() -> None:
    call = sent()
    old = ticket_of(call)
    deliver(call, old)
    assert deliver(call, old).state == "IGNORED"
    assert len(ran) == 1
    assert seen(call).attempt == 1


def test_a_task_that_raises_fails_its_attempt_and_celery_is_told_of_the_wait() -> None:
    doings[:] = [raising(ValueError("bad"))]
    call = sent(retry={"initial_interval": 30, "jitter": False})
    result = deliver(call)
    assert result.state == "RETRY"
    assert (seen(call).state, seen(call).error["type"]) == (State.RETRYABLE, "ValueError")


def test_the_last_failure_is_a_failure_for_celery_too() -> None:
    doings[:] = [raising(ValueError("bad"))]
    call = sent(retry={"max_attempts": 1})
    result = deliver(call)
    assert result.state == "FAILURE"
    assert isinstance(result.result, ValueError)
    assert states([call]) == [State.DISCARDED]


# Celery's own retries become counted waits


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


# A provider that says stop


def stopped_by_answer() -> Exception:
    response = requests.Response()
    response.status_code = 429
    response.headers["Retry-After"] = "3600"
    return requests.HTTPError("429 Too Many Requests", response=response)


@pytest.mark.parametrize("error", [RateLimited(3600), stopped_by_answer()], ids=["raised", "answered"])
def test_a_provider_that_says_stop_costs_time_and_no_attempt(error: Exception) -> None:
    api = key("api")
    doings[:] = [raising(error)]
    call = sent(keys=["api"])
    assert deliver(call).state == "RETRY"
    api.refresh_from_db()
    assert api.blocked_until is not None
    assert (seen(call).state, seen(call).attempt, seen(call).errors) == (State.AVAILABLE, 0, [])
    engine.tick()
    assert states([call]) == [State.AVAILABLE]
    engine.resume("api")
    doings[:] = [lambda _: "done"]
    assert deliver(call).state == "SUCCESS"
    assert [retries for retries, _ in ran] == [0, 0]


# Ignore and Reject


def test_a_task_that_ignores_its_message_is_done() -> None:
    doings[:] = [raising(Ignore())]
    call = sent()
    assert deliver(call).state == "IGNORED"
    assert (seen(call).state, seen(call).result) == (State.COMPLETED, None)


def test_a_task_that_rejects_its_message_is_discarded() -> None:
    doings[:] = [raising(Reject("no", requeue=True))]
    call = sent()
    deliver(call)
    assert (seen(call).state, seen(call).error["type"]) == (State.DISCARDED, "Reject")


# What goes from the pool's process to the worker's


@pytest.mark.parametrize(
    "doing",
    [
        raising(ValueError("bad")),
        raising(stopped_by_answer()),
        raising(RateLimited(5)),
        retrying(countdown=5),
        retrying(exc=stopped_by_answer(), countdown=5),
        retrying(countdown=5, max_retries=0),
    ],
    ids=["error", "answer", "stop", "retry", "retry with a cause", "last retry"],
)
@pytest.mark.parametrize("attempts", [1, 9])
def test_what_a_task_raises_travels_between_processes(doing: Doing, attempts: int) -> None:
    doings[:] = [doing]
    call = sent(retry={"max_attempts": attempts})
    do.push_request(
        id=str(call.id), retries=0, called_directly=False, headers={publish.TICKET_HEADER: str(call.ticket)}
    )
    try:
        with pytest.raises(Exception) as caught:  # noqa: PT011 -- which one it is is another test's
            do.__call__()
    finally:
        do.pop_request()
    if isinstance(caught.value, Retry):
        assert type(pickle.loads(pickle.dumps(caught.value))) is Retry  # noqa: S301 -- as Celery's pool does
    else:
        ExceptionInfo((caught.type, caught.value, caught.tb))
    assert states([call]) != [State.ACTIVE]


# The message in the worker


def request_of(broker: Broker, call: CallQueue | None = None) -> DispatchedRequest:
    """Return the message as the worker holds it, with what it needs of Celery and no more."""
    (message,) = [each for each in broker.take() if call is None or each.headers["id"] == str(call.id)]
    return DispatchedRequest(message, app=broker.app, task=broker.app.tasks[message.headers["task"]])


def claim(call: CallQueue) -> None:
    assert not isinstance(engine.claim.claim(call.id, ticket_of(call)), engine.claim.Refused)


def info(error: BaseException) -> ExceptionInfo:
    try:
        raising(error)(do)
    except BaseException:  # noqa: BLE001 -- whatever it is
        return ExceptionInfo(sys.exc_info())
    raise AssertionError


def test_the_app_makes_such_requests_of_its_messages(broker: Broker) -> None:
    assert issubclass(broker.app.Task, DispatchedTask)
    assert do.Request is DispatchedRequest


def test_a_hard_time_limit_ends_the_attempt_at_once(broker: Broker) -> None:
    key("api", concurrency=1)
    call = sent(keys=["api"])
    second = CallQueue.objects.send(do, keys=["api"])
    request = request_of(broker, call)
    claim(call)
    request.on_timeout(soft=True, timeout=3)
    assert states([call]) == [State.ACTIVE]
    request.on_timeout(soft=False, timeout=5)
    assert (seen(call).state, seen(call).attempt) == (State.RETRYABLE, 1)
    assert seen(call).error["type"] == "TimeLimitExceeded"
    assert states([second]) == [State.DISPATCHED]


@pytest.mark.parametrize(
    "error", [WorkerLostError("exit 9"), Terminated(15), SystemExit(1)], ids=lambda e: type(e).__name__
)
def test_a_worker_process_that_is_lost_ends_the_attempt_at_once(broker: Broker, error: BaseException) -> None:
    call = sent()
    request = request_of(broker)
    claim(call)
    request.on_failure(info(error))
    assert (seen(call).state, seen(call).error["type"]) == (State.RETRYABLE, type(error).__name__)
    assert not Slot.objects.exists()


def test_a_loss_before_the_claim_spends_no_attempt(broker: Broker) -> None:
    call = sent()
    request_of(broker).on_failure(info(WorkerLostError("exit 9")))
    assert (seen(call).state, seen(call).attempt) == (State.DISPATCHED, 0)
    assert seen(call).ticket != call.ticket


def test_a_failure_that_the_task_recorded_itself_is_left_as_it_is(broker: Broker) -> None:
    call = sent()
    request = request_of(broker)
    claim(call)
    request.on_failure(info(ValueError("bad")))
    assert states([call]) == [State.ACTIVE]


def test_a_loss_that_comes_late_changes_nothing(broker: Broker) -> None:
    call = sent()
    request = request_of(broker)
    deliver(call)
    request.on_failure(info(WorkerLostError("exit 9")))
    request.on_timeout(soft=False, timeout=5)
    assert (seen(call).state, seen(call).errors) == (State.COMPLETED, [])


def test_a_plain_message_that_is_lost_concerns_nobody(broker: Broker) -> None:
    do.delay()
    request = request_of(broker)
    assert request.ticket is None
    request.on_failure(info(WorkerLostError("exit 9")))
    request.on_timeout(soft=False, timeout=5)


def revoke(request: Request, *, terminated: bool) -> None:
    """Tell of a revoked message as Celery does."""
    told = {"terminated": terminated, "signum": None, "expired": False}
    signals.task_revoked.send(sender=do, request=request._context, **told)  # noqa: SLF001 -- what Celery sends


def test_a_message_that_is_revoked_before_it_started_cancels_its_call(broker: Broker) -> None:
    call = sent()
    revoke(request_of(broker), terminated=False)
    assert states([call]) == [State.CANCELLED]
    do.delay()
    revoke(request_of(broker), terminated=False)


def test_a_revoke_of_a_call_that_runs_is_left_to_its_request(broker: Broker) -> None:
    call = sent()
    request = request_of(broker)
    claim(call)
    revoke(request, terminated=True)
    assert states([call]) == [State.ACTIVE]


def test_a_task_that_the_worker_does_not_know_costs_an_attempt(broker: Broker) -> None:
    call = seen(CallQueue.objects.send("tests.unknown", retry={"max_attempts": 1}))
    (message,) = broker.take()
    signals.task_unknown.send(sender=None, message=message, exc=KeyError(), name="tests.unknown", id=str(call.id))
    assert (seen(call).state, seen(call).error["type"], seen(call).attempt) == (State.DISCARDED, "UnknownTask", 1)
    assert "no task tests.unknown; import its module" in seen(call).error["message"]


def test_what_the_worker_holds_are_the_messages_that_carry_a_ticket(broker: Broker) -> None:
    call = sent()
    mine = request_of(broker)
    do.delay()
    (message,) = broker.take()
    plain = DispatchedRequest(message, app=broker.app, task=do)
    foreign = Request(message, app=broker.app, task=do)
    for request in (mine, plain, foreign):
        worker_state.reserved_requests.add(request)
    assert held() == [(call.id, call.ticket)]
