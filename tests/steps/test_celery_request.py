"""The message in the worker: what it does there for its call."""

import sys
from datetime import UTC, datetime, timedelta

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import Terminated, WorkerLostError
from celery import signals
from celery.worker import state as worker_state
from celery.worker.request import Request

from dispatcher.celery import DispatchedRequest, DispatchedTask
from dispatcher.celery.heartbeat import reserved_calls
from dispatcher.lifecycle import claim as claims
from dispatcher.models import CallQueue, Slot
from dispatcher.states import State
from tests.builders import committed, key, seen, states, ticket_of
from tests.steps.conftest import Broker
from tests.steps.sample_tasks import deliver, do, raising, sent

pytestmark = [committed, pytest.mark.usefixtures("nothing_ran"), pytest.mark.pooler, pytest.mark.celery]


def request_of(broker: Broker, call: CallQueue | None = None) -> DispatchedRequest:
    """Return the message as the worker holds it, with what it needs of Celery and no more."""
    (message,) = [each for each in broker.take() if call is None or each.headers["id"] == str(call.id)]
    return DispatchedRequest(message, app=broker.app, task=broker.app.tasks[message.headers["task"]])


def claim(call: CallQueue, request: DispatchedRequest) -> None:
    """Claim a call as the process does that runs this message."""
    claimed = claims.claim(call.id, ticket_of(call), claim_id=request.claim_id)
    assert not isinstance(claimed, claims.Refused)


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
    claim(call, request)
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
    claim(call, request)
    request.on_failure(info(error))
    assert (seen(call).state, seen(call).error["type"]) == (State.RETRYABLE, type(error).__name__)
    assert not Slot.objects.exists()


def test_celery_sends_no_message_of_its_own_for_a_lost_process(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(Request, "_retry_worker_lost"):
        pytest.skip("this Celery has no retry_on_worker_lost")
    monkeypatch.setattr(broker.app.tasks[do.name], "retry_on_worker_lost", True)
    call = sent()
    request = request_of(broker)
    claim(call, request)
    request.on_failure(info(WorkerLostError("exit 9")))
    assert states([call]) == [State.RETRYABLE]
    assert broker.take() == []


def test_a_loss_before_the_claim_spends_no_attempt(broker: Broker) -> None:
    call = sent()
    request_of(broker).on_failure(info(WorkerLostError("exit 9")))
    assert (seen(call).state, seen(call).attempt) == (State.DISPATCHED, 0)
    assert seen(call).ticket != call.ticket


def test_a_failure_that_the_task_recorded_itself_is_left_as_it_is(broker: Broker) -> None:
    call = sent()
    request = request_of(broker)
    claim(call, request)
    request.on_failure(info(ValueError("bad")))
    assert states([call]) == [State.ACTIVE]


def test_a_loss_that_comes_late_changes_nothing(broker: Broker) -> None:
    call = sent()
    request = request_of(broker)
    deliver(call)
    request.on_failure(info(WorkerLostError("exit 9")))
    request.on_timeout(soft=False, timeout=5)
    assert (seen(call).state, seen(call).errors) == (State.COMPLETED, [])


def test_a_plain_message_that_is_lost_concerns_no_call(broker: Broker) -> None:
    do.delay()
    request = request_of(broker)
    assert request.ticket is None
    request.on_failure(info(WorkerLostError("exit 9")))
    request.on_timeout(soft=False, timeout=5)


def revoke(request: Request, *, terminated: bool) -> None:
    """Send the signal of a revoked message as Celery does."""
    reply = {"terminated": terminated, "signum": None, "expired": False}
    signals.task_revoked.send(sender=do, request=request._context, **reply)  # noqa: SLF001 -- what Celery sends


def test_a_message_that_is_revoked_before_it_started_cancels_its_call(broker: Broker) -> None:
    call = sent()
    revoke(request_of(broker), terminated=False)
    assert states([call]) == [State.CANCELLED]
    do.delay()
    revoke(request_of(broker), terminated=False)


def test_a_revoke_of_a_call_that_runs_is_left_to_its_request(broker: Broker) -> None:
    call = sent()
    request = request_of(broker)
    claim(call, request)
    revoke(request, terminated=True)
    assert states([call]) == [State.ACTIVE]


def test_a_reconnect_to_the_broker_takes_nothing_from_what_the_worker_holds(broker: Broker) -> None:
    call = sent()
    request = request_of(broker, call)
    worker_state.task_reserved(request)
    request.on_accepted(pid=1, time_accepted=0)
    # What Celery 5.5 and 5.6 do when the connection is closed; 5.7 keeps what is active.
    worker_state.reserved_requests.clear()
    assert reserved_calls() == [(call.id, call.ticket)]
    # What Celery does when a running task is revoked: its process has yet to end.
    worker_state.task_ready(request)
    assert reserved_calls() == [(call.id, call.ticket)]
    claim(call, request)
    request.on_failure(info(Terminated(15)))
    assert reserved_calls() == []


def test_what_the_worker_holds_are_the_messages_that_carry_a_ticket(broker: Broker) -> None:
    call = sent()
    mine = request_of(broker)
    do.delay()
    (message,) = broker.take()
    plain = DispatchedRequest(message, app=broker.app, task=do)
    foreign = Request(message, app=broker.app, task=do)
    for request in (mine, plain, foreign):
        worker_state.reserved_requests.add(request)
    assert reserved_calls() == [(call.id, call.ticket)]


def test_a_message_gives_its_task_the_times_of_the_call_and_its_worker_none(broker: Broker) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    call = sent(scheduled_at=datetime.now(UTC) - timedelta(seconds=1), expires_at=later)
    request = request_of(broker, call)
    assert (request.eta, request.expires) == (None, None), "the database decides"
    seen_by_task = [datetime.fromisoformat(request.request_dict[name]) for name in ("eta", "expires")]
    assert seen_by_task == [call.scheduled_at, later]
