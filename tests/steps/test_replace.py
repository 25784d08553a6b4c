"""`self.replace`: the call becomes another task's, with its id and place in a workflow, and spends no attempt."""

from datetime import timedelta
from typing import Any

import pytest
from celery import Task, group, shared_task

from dispatcher.celery import fence
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.states import State
from dispatcher.testing import capture, drain
from tests.builders import committed, key, seen
from tests.steps.conftest import Broker, app
from tests.steps.sample_tasks import autoretry, behaviours, deliver, do, ran, retrying, sent, takes, wake

pytestmark = [committed, pytest.mark.celery, pytest.mark.usefixtures("nothing_ran")]


@shared_task(name="tests.late", acks_late=True)
def late() -> None: ...


class Unsent(Task):
    """A base class that keeps its messages back."""

    abstract = True

    def apply_async(self, *_: Any, **__: Any) -> None:
        """Send nothing."""


@shared_task(name="tests.unsent", base=Unsent)
def unsent() -> None: ...


@pytest.fixture(autouse=True)
def _limits(broker: Broker, settings: Any) -> None:
    for name in ("api", "mail"):
        key(name, concurrency=1)
    settings.DISPATCHER = {"tasks": {"tests.do": ["api"], "tests.takes": ["mail"]}, "delivery": {"*": "broker"}}


def spent(call: CallQueue) -> list[str]:
    """Return the names of the keys that a call spends."""
    (lane,) = CallQueue.objects.filter(id=call.id).values_list("lane__key_ids", flat=True)
    return sorted(RateLimitKey.objects.filter(id__in=lane).values_list("name", flat=True))


def replaced(by: Any, **fields: Any) -> CallQueue:
    """Run a call whose task replaces itself, and return the call."""
    behaviours[:] = [lambda self: self.replace(by)]
    call = sent(**fields)
    assert deliver(call).state == "IGNORED"
    return seen(call)


def test_the_call_becomes_the_other_tasks_and_spends_no_attempt() -> None:
    call = replaced(takes.s(1, b=2), retry={"max_attempts": 1})
    assert (call.task, call.args, call.kwargs) == ("tests.takes", [1], {"b": 2})
    # It gave its slots back, and has gone on.
    assert (call.state, call.attempt, call.error_count) == (State.DISPATCHED, 0, 0)
    assert Slot.objects.count() == 1
    behaviours[:] = [lambda _: 3]
    assert deliver(call).get() == 3
    assert (seen(call).state, seen(call).result, seen(call).attempt) == (State.COMPLETED, 3, 1)


def test_attempts_of_the_task_before_do_not_count_for_the_other_one() -> None:
    behaviours[:] = [retrying(countdown=0), lambda self: self.replace(takes.s(1, 2))]
    call = sent()
    deliver(call)
    assert wake(call) == [call.id]
    assert seen(call).attempt == 1
    deliver(call)
    assert (seen(call).task, seen(call).attempt, seen(call).error_count) == ("tests.takes", 0, 1)


@pytest.mark.parametrize(
    ("keys", "other", "wanted"),
    [
        (None, takes.s(1, 2), ["mail"]),
        (None, autoretry.s(), []),
        (["mail", "api"], takes.s(1, 2), ["api", "mail"]),
        (["mail"], autoretry.s(), ["mail"]),
    ],
    ids=["declared", "none declared", "its own", "its own, none declared"],
)
def test_it_spends_the_keys_of_the_other_task_or_those_that_it_was_sent_with(
    keys: list[str] | None, other: Any, wanted: list[str]
) -> None:
    assert spent(replaced(other, keys=keys)) == wanted


def test_retries_are_the_other_tasks_or_those_that_it_was_sent_with() -> None:
    behaviours[:] = [lambda self: self.replace(late.s())]
    given, own = sent(retry={"max_attempts": 7}), CallQueue.objects.get(id=do.apply_async(queue="mail").id)
    for call in (given, own):
        deliver(call)
    assert (seen(given).retry["max_attempts"], seen(own).retry["max_attempts"]) == (7, 3)


def test_a_countdown_of_the_other_task_is_waited_for() -> None:
    call = replaced(takes.s(1, 2).set(countdown=60, expires=90, priority=3))
    assert (call.state, call.priority, spent(call)) == (State.SCHEDULED, 3, ["mail"])
    assert call.created_at + timedelta(seconds=60) < call.scheduled_at < call.expires_at


@pytest.mark.parametrize(
    "other",
    [takes.s(1, 2) | takes.s(3), group(takes.s(1, 2)), takes.s(1, 2).set(serializer="pickle")],
    ids=["chain", "group", "option"],
)
def test_what_is_no_call_ends_it_without_another_attempt(other: Any) -> None:
    behaviours[:] = [lambda self: self.replace(other)]
    call = sent(retry={"max_attempts": 3})
    assert deliver(call).state == "FAILURE"
    assert (seen(call).state, seen(call).error["type"], seen(call).task) == (State.DISCARDED, "CallInvalid", "tests.do")
    assert not Slot.objects.exists()


def test_a_task_whose_class_sends_nothing_under_the_id_can_not_take_its_place() -> None:
    behaviours[:] = [lambda self: self.replace(unsent.s())]
    call = sent(retry={"max_attempts": 3})
    deliver(call)
    assert (seen(call).state, seen(call).error["type"]) == (State.DISCARDED, "CallInvalid")


def test_what_is_drained_in_a_test_runs_as_the_other_task(broker: Broker) -> None:
    behaviours[:] = [lambda self: self.replace(takes.s(1, 2)), lambda _: "done"]
    with capture():
        call = CallQueue.objects.send(do, queue="mail")
    assert drain() == {"completed": 1}
    assert (seen(call).task, seen(call).result, seen(call).attempt) == ("tests.takes", "done", 1)


def test_a_task_of_any_class_is_replaced() -> None:
    class Plain(Task):
        """A base class that knows nothing of the dispatcher."""

    @app.task(name="tests.replacing", bind=True, base=Plain, shared=False)
    def replacing(self: Task) -> Any:
        return self.replace(do.si())

    try:
        fence.fence(replacing)
        call = sent(replacing)
        replacing.apply(task_id=str(call.id), headers={"dispatcher_ticket": str(seen(call).ticket)})
        assert (seen(call).task, seen(call).attempt) == ("tests.do", 0)
    finally:
        del app.tasks["tests.replacing"]


def test_a_task_without_the_dispatcher_is_replaced_as_always() -> None:
    behaviours[:] = [lambda self: self.replace(do.si("in its place")) if not self.request.args else 7]
    assert do.apply().get() == 7
    assert [args for _, args in ran] == [(), ("in its place",)]
    assert not CallQueue.objects.exists()
