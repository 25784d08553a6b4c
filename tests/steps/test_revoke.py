"""Celery's revoke and terminate reach calls that wait, and a person's retry starts a revoked call again."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from billiard.exceptions import Terminated
from celery import signals
from celery.worker import state as worker_state
from celery.worker.control import Panel

from dispatcher import api
from dispatcher.lifecycle import control
from dispatcher.models import CallQueue, Slot
from dispatcher.states import State
from dispatcher.worker import control as worker_control
from tests.builders import committed, key, seen, states
from tests.steps.conftest import Broker
from tests.steps.sample_tasks import behaviours, deliver, do, ran, sent, wake
from tests.steps.test_celery_request import claim as begin
from tests.steps.test_celery_request import info, request_of

pytestmark = [committed, pytest.mark.usefixtures("nothing_ran")]


@pytest.fixture(autouse=True)
def _commands() -> Iterator[None]:
    before = dict(Panel.data)
    worker_control.listen()
    yield
    Panel.data.update(before)
    worker_state.reset_state()


def command(broker: Broker, *calls: object, name: str = "revoke", keeper: object = None, **options: object) -> Any:
    """Let a worker get the command, as it does from the broker; return its answer. keeper: that of its loops."""
    ids = [str(getattr(call, "id", call)) for call in calls]
    consumer = SimpleNamespace(controller=SimpleNamespace(dispatcher_keeper=keeper), pool=None)
    return Panel.data[name](SimpleNamespace(app=broker.app, consumer=consumer), task_id=ids, **options)


def test_a_call_that_waits_is_cancelled(broker: Broker) -> None:
    key("api", concurrency=1)
    calls = [sent(keys=["api"]), CallQueue.objects.send(do, keys=["api"])]
    command(broker, calls[0])
    assert states(calls) == [State.CANCELLED, State.DISPATCHED]


def test_several_are_revoked_at_once_and_what_is_no_call_is_left_to_celery(broker: Broker) -> None:
    calls, other = [sent(), sent()], str(uuid4())
    command(broker, *calls, other, "no uuid")
    assert states(calls) == [State.CANCELLED] * 2
    assert other in worker_state.revoked
    assert not any(str(call.id) in worker_state.revoked for call in calls)


def test_a_call_that_a_loop_runs_is_an_active_request_to_celery(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, waits, marked = sent(), sent(), list[str]()
    backend = SimpleNamespace(
        get_state=lambda _: "PENDING", mark_as_revoked=lambda task_id, **_: marked.append(task_id)
    )
    monkeypatch.setattr(type(broker.app), "backend", backend)
    nothing: Callable[..., None] = lambda *_: None  # noqa: E731
    keeper = SimpleNamespace(held=lambda: [(runs.id, uuid4())], terminate=nothing, terminate_started=nothing)
    command(broker, runs, waits, keeper=keeper)
    assert str(runs.id) not in marked, "it goes on, and its result is what it returns"
    assert command(broker, runs, keeper=keeper, terminate=True) == {"ok": f"terminate: {runs.id}"}
    assert not worker_state.requests


def test_what_has_started_is_terminated_once_no_other_attempt_can_start(broker: Broker) -> None:
    waits, runs, found = sent(), sent(), []
    begin(runs, request_of(broker, runs))

    def note(call: UUID, number: int) -> None:
        row = CallQueue.objects.get(id=call)
        found.append((call, number, row.state, row.is_revoked))

    keeper = SimpleNamespace(held=list, terminate=lambda *_: None, terminate_started=note)
    command(broker, waits, runs, keeper=keeper, terminate=True)
    wanted = [(waits.id, 15, State.CANCELLED, False), (runs.id, 15, State.ACTIVE, True)]
    assert found == wanted
    command(broker, waits, keeper=keeper)
    assert found == wanted, "it is not to be terminated"


def test_terminate_reaches_them_too(broker: Broker) -> None:
    call = sent()
    command(broker, call, name="terminate", signal="TERM")
    assert states([call]) == [State.CANCELLED]


def test_a_call_that_runs_goes_on_and_is_not_tried_again(broker: Broker) -> None:
    call = sent()

    def behaviour(_: object) -> None:
        command(broker, call)
        raise ValueError("bad")

    behaviours[:] = [behaviour]
    deliver(call)
    assert (seen(call).state, seen(call).is_revoked) == (State.RETRYABLE, True)
    assert wake(call) == []
    assert (seen(call).state, seen(call).attempt, len(ran)) == (State.CANCELLED, 1, 1)
    assert not Slot.objects.exists()


@pytest.mark.parametrize(
    ("order", "retry"), [("command first", None), ("loss first", None), ("command first", {"max_attempts": 1})]
)
def test_a_call_that_is_terminated_is_cancelled_at_once(broker: Broker, order: str, retry: Any) -> None:
    call = sent(retry=retry)
    request = request_of(broker, call)
    begin(call, request)
    if order == "command first":
        command(broker, call, terminate=True)
    request.on_failure(info(Terminated(15)))
    if order == "loss first":
        command(broker, call, terminate=True)
    assert (seen(call).state, seen(call).error["type"]) == (State.CANCELLED, "Terminated")


@pytest.mark.parametrize("terminate", [True, False])
def test_a_persons_retry_runs_on_every_worker_that_got_the_command(broker: Broker, terminate: bool) -> None:  # noqa: FBT001
    call = sent()
    request = request_of(broker, call)
    begin(call, request)
    command(broker, call, terminate=terminate)
    request.on_failure(info(Terminated(15)))
    assert states([call]) == [State.CANCELLED]
    api.retry([call.id])
    assert not request_of(broker, call).revoked()
    assert deliver(call).state == "SUCCESS"
    assert (seen(call).state, seen(call).is_revoked) == (State.COMPLETED, False)


def test_a_persons_retry_just_after_the_end_of_the_attempt_is_not_cancelled(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cancel = control.cancel

    def retry_and_cancel(calls: list[UUID], **options: Any) -> list[UUID]:
        assert api.retry(calls) == calls
        return cancel(calls, **options)

    monkeypatch.setattr(control, "cancel", retry_and_cancel)
    call = sent()
    request = request_of(broker, call)
    begin(call, request)
    command(broker, call, terminate=True)
    request.on_failure(info(Terminated(15)))
    assert seen(call).state in {State.AVAILABLE, State.DISPATCHED}


def test_a_revoke_that_came_before_the_call_was_committed_cancels_its_message(broker: Broker) -> None:
    call = sent()
    worker_state.revoked.add(str(call.id))
    assert request_of(broker, call).revoked()
    assert states([call]) == [State.CANCELLED]
    api.retry([call.id])
    assert not request_of(broker, call).revoked()


def test_a_worker_changes_its_commands_once() -> None:
    first = Panel.data["revoke"]
    worker_control.listen()
    assert Panel.data["revoke"] is first
    assert signals.task_revoked.receivers
