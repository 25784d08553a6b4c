"""The fence: a task claims its calls whatever its class is."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, signals
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Ignore, ImproperlyConfigured
from celery.worker.request import Request

from dispatcher.celery import DispatchedRequest, DispatchedTask, fence, heartbeat
from dispatcher.celery.heartbeat import KeptConnections, Presence
from dispatcher.errors import CallInvalid
from dispatcher.messages.tickets import TICKET_HEADER
from dispatcher.models import CallQueue, Slot
from dispatcher.states import State
from tests.builders import committed, key, seen, ticket_of
from tests.steps.conftest import Broker, app

pytestmark = [committed, pytest.mark.usefixtures("nothing_ran"), pytest.mark.celery]

calls: list[str] = []


class Plain(Task):
    """A base class that knows nothing of the dispatcher."""


class Running(Task):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls.append("before")
        return self.run(*args, **kwargs)


class Calling(Task):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls.append("before")
        return super().__call__(*args, **kwargs)


class CallingDispatched(DispatchedTask):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls.append("before")
        return super().__call__(*args, **kwargs)


class RunningDispatched(DispatchedTask):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        calls.append("before")
        return self.run(*args, **kwargs)


BASES = [Plain, DjangoTask, Running, Calling, CallingDispatched, RunningDispatched]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    known = set(app.tasks)
    calls.clear()
    yield
    for name in set(app.tasks) - known:
        del app.tasks[name]


def task_of(base: type[Task], **options: Any) -> Task:
    """Register a task of this class; it does what the test adds to `behaviours`."""

    @app.task(name="tests.based", bind=True, base=base, shared=False, **options)
    def based(self: Task, *args: Any) -> Any:
        calls.append(f"run {self.request.retries}")
        return self.behaviour(*args)

    based.behaviour = lambda *_: "done"
    return based


def deliver(task: Task, call: CallQueue) -> Any:
    """Run a call's message as a worker does that has fenced its tasks."""
    call = seen(call)
    ticket = {TICKET_HEADER: str(ticket_of(call))}
    return task.apply(args=call.args, task_id=str(call.id), retries=call.attempt, headers=ticket)


@pytest.mark.parametrize("base", BASES)
def test_a_call_is_claimed_and_finished_whatever_the_class_of_its_task(base: type[Task]) -> None:
    key("api", concurrency=1)
    task = task_of(base)
    call = CallQueue.objects.send(task, args=[1], keys=["api"])
    task.behaviour = lambda *_: seen(call).state
    assert deliver(task, call).result == State.ACTIVE
    assert (seen(call).state, seen(call).attempt, seen(call).result) == (State.COMPLETED, 1, "active")
    assert not Slot.objects.exists()
    assert calls[-1] == "run 0"
    assert isinstance(task, base)


@pytest.mark.parametrize("base", BASES)
def test_a_late_message_runs_nothing_of_any_class(base: type[Task]) -> None:
    task = task_of(base)
    call = seen(CallQueue.objects.send(task))
    deliver(task, call)
    before = list(calls)
    late = task.apply(task_id=str(call.id), headers={TICKET_HEADER: str(ticket_of(call))})
    assert late.state == "IGNORED"
    assert calls == before


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("way", ["retry", "autoretry"])
def test_a_retry_waits_in_the_queue_whatever_the_class_of_its_task(base: type[Task], way: str, broker: Broker) -> None:
    def behaviour(*_: Any) -> None:
        if way == "autoretry":
            raise OSError("flaky")
        raise task.retry(countdown=90)

    task = task_of(base, autoretry_for=(OSError,), default_retry_delay=90)
    call = CallQueue.objects.send(task)
    broker.take()
    task.behaviour = behaviour
    assert deliver(task, call).state == "RETRY"
    assert (seen(call).state, seen(call).attempt) == (State.RETRYABLE, 1)
    assert broker.take() == []


@pytest.mark.parametrize("base", BASES)
def test_a_fenced_task_without_a_call_runs_as_always(base: type[Task], broker: Broker) -> None:
    task = task_of(base)
    fence.fence(task)
    assert task() == "done"
    assert task.apply().result == "done"
    task.delay()
    assert len(broker.take()) == 1
    assert not CallQueue.objects.exists()


def test_what_a_class_overrides_of_retry_still_counts() -> None:
    class Noting(Task):
        def retry(self, *args: Any, **options: Any) -> Any:
            calls.append("asked")
            return super().retry(*args, **options)

    task = task_of(Noting)
    call = CallQueue.objects.send(task)
    task.behaviour = lambda *_: task.retry(countdown=5)
    assert deliver(task, call).state == "RETRY"
    assert "asked" in calls
    assert seen(call).state == State.RETRYABLE


@pytest.mark.parametrize("base", [Task, DispatchedTask])
@pytest.mark.parametrize("error", [ValueError("bad"), Ignore()])
def test_what_happens_before_the_start_is_part_of_the_attempt(base: type[Task], error: Exception) -> None:
    class Prepared(base):  # type: ignore[misc, valid-type]
        def before_start(self, *_: Any) -> None:
            calls.append("prepared")
            raise error

    task = task_of(Prepared)
    call = CallQueue.objects.send(task, retry={"max_attempts": 1})
    deliver(task, call)
    assert calls == ["prepared"]
    assert seen(call).state == (State.COMPLETED if isinstance(error, Ignore) else State.DISCARDED)


def test_a_request_class_of_the_task_stays_and_ends_the_attempts_of_lost_processes() -> None:
    class Own(Request):
        def on_timeout(self, soft: bool, timeout: float) -> None:  # noqa: FBT001 -- Celery's signature
            super().on_timeout(soft, timeout)

    class Requesting(Task):
        Request = Own

    task = task_of(Requesting)
    fence.fence(task)
    assert issubclass(task.Request, Own)
    assert issubclass(task.Request, DispatchedRequest)
    assert fence.fence(task) is False


# A class that refuses


class Closed(Task):
    def __init_subclass__(cls, **_: Any) -> None:
        if cls.__mro__[1] is not Closed:
            message = "no subclasses"
            raise TypeError(message)


def test_a_task_that_cannot_be_fenced_is_refused_by_the_send() -> None:
    task = task_of(Closed)
    with pytest.raises(CallInvalid, match=r"task: its calls would never be claimed: .*tests\.based.*no subclasses"):
        CallQueue.objects.send(task)
    assert not CallQueue.objects.exists()


def test_a_worker_with_a_task_that_cannot_be_fenced_does_not_start() -> None:
    task_of(Closed)
    with pytest.raises(ImproperlyConfigured, match=r"never be claimed: .*tests\.based.*no subclasses"):
        fence.Fence(SimpleNamespace(app=app))


# How a worker gets it


def test_a_worker_gets_its_steps_whatever_the_base_class_of_its_app() -> None:
    # What Celery connects for a Django project would close the connections of this process after each task from now on.
    plain = Celery("plain", set_as_current=False, fixups=[])
    signals.worker_init.send(sender=type("Worker", (), {"app": plain, "pool_cls": "prefork"}))
    assert plain.steps["worker"] >= {fence.Fence, KeptConnections, Presence}


def test_a_process_that_was_spawned_fences_its_tasks_and_how_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat.Identity, "worker", None)  # as in a process that was not forked
    task = task_of(Running)
    kind = type(task)
    call = seen(CallQueue.objects.send(task))
    task.__class__ = kind
    signals.worker_process_init.send(sender="here")
    ticket = {TICKET_HEADER: str(ticket_of(call))}
    task.__trace__(str(call.id), [], {}, {"id": str(call.id), "task": task.name, "headers": ticket})
    assert heartbeat.Identity.worker is None
    assert seen(call).state == State.COMPLETED


def test_the_tasks_of_django_keep_what_celery_gives_them() -> None:
    assert issubclass(app.Task, DjangoTask)
    task = task_of(Plain)
    fence.fence(task)
    assert callable(task.delay_on_commit)
    assert callable(app.Task.apply_async_on_commit)
