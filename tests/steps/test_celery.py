"""The Celery side: a dispatched task claims before it runs and finishes after; a plain one runs as always."""

import pickle
from typing import Never

import pytest
import requests
from billiard.einfo import ExceptionInfo
from celery import Task
from celery.exceptions import Ignore, Reject, Retry

from dispatcher import api, engine
from dispatcher.celery import DispatchedRequest, fence
from dispatcher.ending import completed
from dispatcher.errors import RateLimited
from dispatcher.lifecycle.run import Returned, Unstored, ending_of
from dispatcher.messages.tickets import TICKET_HEADER
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.builders import committed, key, seen, states, ticket_of
from tests.steps.conftest import Broker, make_app
from tests.steps.sample_tasks import (
    Behaviour,
    behaviours,
    deliver,
    do,
    raising,
    ran,
    retrying,
    sent,
)

pytestmark = [committed, pytest.mark.usefixtures("nothing_ran"), pytest.mark.celery]


# A task without a call


def test_a_task_that_is_called_or_applied_without_a_call_runs_as_always() -> None:
    assert do(1) == "done"
    assert do.apply(args=[2]).get() == "done"
    assert [args for _, args in ran] == [(1,), (2,)]
    assert not CallQueue.objects.exists()


def test_a_delay_goes_to_the_broker_as_always(broker: Broker) -> None:
    do.delay(1)
    (message,) = broker.take()
    assert TICKET_HEADER not in message.headers
    assert message.payload[0] == [1]
    assert not CallQueue.objects.exists()


def test_a_plain_task_retries_as_celery_does() -> None:
    behaviours[:] = [retrying(countdown=0), lambda _: "done"]
    assert do.apply().get() == "done"
    assert [retries for retries, _ in ran] == [0, 1]
    behaviours[:] = [retrying(exc=KeyError("bad"), max_retries=0)]
    with pytest.raises(KeyError):
        do.apply().get()
    assert not CallQueue.objects.exists()


def test_a_ticket_that_is_no_uuid_is_none() -> None:
    assert do.apply(headers={TICKET_HEADER: "no"}).get() == "done"


def test_a_task_calls_another_directly_within_its_own_attempt() -> None:
    behaviours[:] = [lambda _: do(2), lambda _: "inner"]
    call = sent(args=[1])
    assert deliver(call).result == "inner"
    assert (seen(call).state, seen(call).attempt) == (State.COMPLETED, 1)


@pytest.mark.parametrize("task_id", ["01a20342-0000-7000-8000-000000000000", "invoice-7"])
def test_a_message_with_the_headers_of_a_call_is_not_the_calls(broker: Broker, task_id: str) -> None:
    call = sent()
    (message,) = broker.take()
    passed_on = {name: value for name, value in message.headers.items() if name.startswith("dispatcher")}
    do.apply_async(task_id=task_id, headers=passed_on)
    (message,) = broker.take()
    request = DispatchedRequest(message, app=broker.app, task=broker.app.tasks[do.name])
    assert (request.ticket, request.claim_id, fence.ticket_of_message(message)) == (None, None, None)
    assert do.apply(task_id=task_id, headers=passed_on).get() == "done"
    assert states([call]) == [State.DISPATCHED]


# A task with a call


@pytest.mark.parametrize(("of_task", "of_call"), [(True, None), (False, True), (True, False)])
def test_the_row_keeps_no_result_that_task_or_call_ignores_and_celery_has_it(
    *, of_task: bool, of_call: bool | None
) -> None:
    @make_app("ignoring").task(name="tests.ignoring", ignore_result=of_task, shared=False)
    def ignoring() -> str:
        return "secret"

    of_request = {} if of_call is None else {"ignore_result": of_call}
    call = sent(ignoring.s().set(**of_request))
    headers = {TICKET_HEADER: str(ticket_of(call))}
    assert ignoring.apply(task_id=str(call.id), headers=headers, **of_request).result == "secret"
    assert (seen(call).state, seen(call).result) == (State.COMPLETED, None)
    assert ending_of(Returned(result=Unstored("secret")), attempt=1, policy=None) == completed(None)


def test_a_result_that_the_backend_can_not_store_fails_the_call_as_it_fails_celerys_task() -> None:
    made = make_app("encoding", backend="cache+memory://")

    @made.task(name="tests.encoding", bind=True, shared=False)
    def encoding(self: Task) -> object:
        self.request.update(is_eager=False)
        ran.append(self)
        return object()

    call = sent(encoding, retry={"max_attempts": 3})
    result = encoding.apply(task_id=str(call.id), headers={TICKET_HEADER: str(ticket_of(call))})
    stored = seen(call)
    assert (result.state, stored.state, stored.error["type"]) == ("FAILURE", State.DISCARDED, "EncodeError")
    assert len(ran) == 1


def test_a_task_that_raises_fails_its_attempt_and_celery_learns_of_the_wait() -> None:
    behaviours[:] = [raising(ValueError("bad"))]
    call = sent(retry={"initial_interval": 30, "jitter": False})
    result = deliver(call)
    assert result.state == "RETRY"
    assert (seen(call).state, seen(call).error["type"]) == (State.RETRYABLE, "ValueError")


# A provider that says stop


def stopped_by_answer() -> Exception:
    response = requests.Response()
    response.status_code = 429
    response.headers["Retry-After"] = "3600"
    return requests.HTTPError("429 Too Many Requests", response=response)


@pytest.mark.parametrize("error", [RateLimited(3600), stopped_by_answer()], ids=["raised", "answered"])
def test_a_provider_that_says_stop_costs_time_and_no_attempt(error: Exception) -> None:
    row = key("api")
    behaviours[:] = [raising(error)]
    call = sent(keys=["api"])
    assert deliver(call).state == "RETRY"
    row.refresh_from_db()
    assert row.blocked_until is not None
    assert (seen(call).state, seen(call).attempt, seen(call).errors) == (State.AVAILABLE, 0, [])
    engine.tick()
    assert states([call]) == [State.AVAILABLE]
    api.resume("api")
    behaviours[:] = [lambda _: "done"]
    assert deliver(call).state == "SUCCESS"
    assert [retries for retries, _ in ran] == [0, 0]


# Ignore and Reject


def test_a_task_that_ignores_its_message_is_done() -> None:
    behaviours[:] = [raising(Ignore())]
    call = sent()
    assert deliver(call).state == "IGNORED"
    assert (seen(call).state, seen(call).result) == (State.COMPLETED, None)


def test_a_task_that_rejects_its_message_is_discarded() -> None:
    behaviours[:] = [raising(Reject("no", requeue=True))]
    call = sent()
    deliver(call)
    assert (seen(call).state, seen(call).error["type"]) == (State.DISCARDED, "Reject")


# What goes from the pool's process to the worker's


class Unpicklable(Exception):
    def __reduce__(self) -> Never:
        raise TypeError


@pytest.mark.parametrize(
    "doing",
    [
        raising(ValueError("bad")),
        raising(stopped_by_answer()),
        raising(RateLimited(5)),
        retrying(countdown=5),
        retrying(exc=stopped_by_answer(), countdown=5),
        retrying(exc=Unpicklable(), countdown=5),
        retrying(countdown=5, max_retries=0),
    ],
    ids=["error", "answer", "stop", "retry", "retry with a cause", "retry with one of no words", "last retry"],
)
@pytest.mark.parametrize("attempts", [1, 9])
def test_what_a_task_raises_travels_between_processes(doing: Behaviour, attempts: int) -> None:
    behaviours[:] = [doing]
    call = sent(retry={"max_attempts": attempts})
    do.push_request(id=str(call.id), retries=0, called_directly=False, headers={TICKET_HEADER: str(call.ticket)})
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
