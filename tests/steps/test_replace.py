"""`self.replace`: a call has an error that names the remedy, other tasks are replaced."""

from typing import Any

import pytest
from celery import Task

from dispatcher.celery import fence
from dispatcher.models import CallQueue, Slot
from dispatcher.states import State
from tests.builders import committed, key, seen
from tests.steps.conftest import Broker, app
from tests.steps.sample_tasks import autoretry, behaviours, deliver, do, ran, sent

pytestmark = [committed, pytest.mark.usefixtures("nothing_ran")]


def test_a_call_is_not_replaced(broker: Broker) -> None:
    key("api", concurrency=1)
    behaviours[:] = [lambda self: self.replace(autoretry.si())]
    call = sent(keys=["api"], retry={"max_attempts": 3})
    broker.take()
    assert deliver(call).state == "FAILURE"
    stored = seen(call)
    assert (stored.state, stored.error["type"]) == (State.DISCARDED, "CallInvalid")
    assert stored.error["message"].startswith("replace: ")
    assert "CallQueue.objects.send" in stored.error["message"]
    assert broker.take() == []
    assert not Slot.objects.exists()


def test_a_task_can_catch_the_refusal_and_send_what_comes_next() -> None:
    key("api", concurrency=1)

    def send_next(self: Task) -> str:
        try:
            self.replace(autoretry.si())
        except ValueError:
            CallQueue.objects.send(autoretry.si(), keys=["api"])
        return "sent"

    behaviours[:] = [send_next]
    call = sent(keys=["api"])
    deliver(call)
    following = CallQueue.objects.exclude(id=call.id).get()
    assert (seen(call).state, following.state, following.task) == (State.COMPLETED, State.DISPATCHED, autoretry.name)


def test_a_task_of_any_class_is_refused_it() -> None:
    class Plain(Task):
        """A base class that knows nothing of the dispatcher."""

    @app.task(name="tests.replacing", bind=True, base=Plain, shared=False)
    def replacing(self: Task) -> Any:
        ran.append((self.request.retries, ()))
        return self.replace(do.si())

    try:
        fence.fence(replacing)
        call = sent(replacing, retry={"max_attempts": 3})
        headers = {"dispatcher_ticket": str(seen(call).ticket)}
        replacing.apply(task_id=str(call.id), headers=headers)
        assert (seen(call).state, seen(call).error["type"]) == (State.DISCARDED, "CallInvalid")
    finally:
        del app.tasks["tests.replacing"]


def test_a_task_without_the_dispatcher_is_replaced_as_always() -> None:
    behaviours[:] = [lambda self: self.replace(do.si("in its place")) if not self.request.args else 7]
    assert do.apply().get() == 7
    assert [args for _, args in ran] == [(), ("in its place",)]
    assert not CallQueue.objects.exists()
