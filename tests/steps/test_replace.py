"""`self.replace`: the call becomes another task's, with its id and place in a workflow, and spends no attempt."""

from contextlib import nullcontext
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery import Task, shared_task, signature
from django.db import transaction

from dispatcher.celery import fence, replacement
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.states import State
from dispatcher.testing import capture, drain
from tests.builders import committed, key, seen
from tests.races.lockstep import DEADLINE, actors
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
    behaviours[:] = [retrying(countdown=1), lambda self: self.replace(takes.s(1, 2))]
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


def test_a_workflow_has_calls_of_its_own_and_the_last_one_takes_the_place() -> None:
    call = replaced(takes.s(1, 2) | takes.s(3) | do.s().set(queue="elsewhere"), retry={"max_attempts": 1})
    assert (call.state, call.attempt, Slot.objects.filter(call=call).exists()) == (State.COMPLETED, 1, False)
    first = CallQueue.objects.exclude(id=call.id).get()
    assert (first.task, first.args, spent(first)) == ("tests.takes", [1, 2], ["mail"])
    (second, last) = (signature(each) for each in reversed(first.options["chain"]))
    assert last.id == str(call.id)
    for _ in range(2):
        second.apply_async([5])
        last.apply_async([6])
    assert CallQueue.objects.count() == 3
    taken = seen(call)
    assert (taken.task, taken.args, taken.queue, taken.attempt) == ("tests.do", [6], "elsewhere", 0)
    assert (taken.state, spent(taken)) == (State.DISPATCHED, ["api"])


@pytest.mark.parametrize("scope", [nullcontext, transaction.atomic])
def test_a_workflow_is_started_whatever_becomes_of_the_tasks_transaction(scope: Any) -> None:
    def behave(self: Task) -> None:
        with scope():
            key("undone")
            self.replace(takes.s(1, 2) | takes.s(3))

    behaviours[:] = [behave]
    call = sent()
    assert deliver(call).state == "IGNORED"
    assert CallQueue.objects.count() == 2
    assert RateLimitKey.objects.filter(name="undone").exists() == (scope is nullcontext)


def test_the_last_call_of_a_workflow_that_outruns_the_end_of_the_first_one_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    behaviours[:] = [lambda self: self.replace(takes.s(1, 2) | takes.s(3, 4))]
    call, record = sent(), replacement.ends.record_one
    last = takes.si(5, 6).set(task_id=str(call.id), replaced_task_nesting=1)
    with actors(1) as (quick,):

        def record_late(*args: Any, **options: Any) -> bool:
            sending.append(quick.begin(last.apply_async))
            quick.wait_blocked_or_done(sending[0])
            return record(*args, **options)

        sending: list[Any] = []
        monkeypatch.setattr(replacement.ends, "record_one", record_late)
        deliver(call)
        assert sending[0].result(DEADLINE).id == str(call.id)
    assert (seen(call).task, seen(call).args, CallQueue.objects.count()) == ("tests.takes", [5, 6], 2)


def test_a_call_holds_its_room_until_its_tasks_own_code_has_ended() -> None:
    held: list[tuple[bool, int]] = []

    def behave(self: Task) -> None:
        try:
            self.replace(takes.s(1, 2) | takes.s(3))
        finally:
            held.append((Slot.objects.filter(call_id=call.id).exists(), CallQueue.objects.count()))

    behaviours[:] = [behave]
    call = sent()
    deliver(call)
    assert held == [(True, 1)]
    assert CallQueue.objects.count() == 2


def test_an_attempt_that_has_lost_its_call_starts_no_workflow() -> None:
    def behave(self: Task) -> None:
        CallQueue.objects.filter(id=call.id).update(ticket=uuid4())
        self.replace(takes.s(1, 2) | takes.s(3))

    behaviours[:] = [behave]
    call = sent()
    deliver(call)
    assert (CallQueue.objects.count(), seen(call).state) == (1, State.ACTIVE)


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        pytest.param(takes.s(1, 2).set(serializer="pickle"), "CallInvalid", id="of one task"),
        pytest.param(takes.s(1, 2).set(serializer="pickle") | takes.s(3), "CallInvalid", id="in a workflow"),
        pytest.param(5, "CallInvalid", id="a result"),
        pytest.param(takes, "CallInvalid", id="a task"),
        pytest.param(takes.s(1, 2).set(chord=takes.s()), "ImproperlyConfigured", id="a part of a chord"),
    ],
)
def test_what_is_no_call_ends_it_without_another_attempt(other: Any, kind: str) -> None:
    behaviours[:] = [lambda self: self.replace(other)]
    call = sent(retry={"max_attempts": 3})
    assert deliver(call).state == "FAILURE"
    assert (seen(call).state, seen(call).error["type"], seen(call).task) == (State.DISCARDED, kind, "tests.do")
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
