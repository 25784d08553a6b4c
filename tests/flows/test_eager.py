"""The flow of `task_always_eager`: a sender's own thread claims, runs, finishes and hands on, as a worker would."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from pytest_django import Settings

from dispatcher import api, engine
from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.flows import sample_tasks
from tests.flows.processes import Processes
from tests.races.audit import audit
from tests.races.lockstep import concurrent, eventually

pytestmark = [concurrent, pytest.mark.usefixtures("sending")]


@pytest.fixture(autouse=True)
def _alone(processes: Processes) -> None:
    """End workers of earlier flows: they look by themselves, and would take what the sender is to run."""
    processes.kill_workers()


@pytest.fixture(autouse=True, params=["direct", "broker"])
def _eager(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: Settings, sending: None
) -> Iterator[None]:
    settings.DISPATCHER |= {"delivery": {"*": request.param}}
    monkeypatch.setenv("FLOWS_NOTES", str(tmp_path / "notes"))
    sample_tasks.app.conf.task_always_eager = True
    yield
    sample_tasks.app.conf.task_always_eager = False


def test_a_call_has_run_when_its_sender_goes_on() -> None:
    call = CallQueue.objects.send(sample_tasks.echo, args=["hello"])
    now = CallQueue.objects.get(id=call.id)
    assert (now.state, now.result, now.attempt) == (State.COMPLETED, "hello", 1)
    audit()


def test_a_call_runs_after_the_commit_and_not_before() -> None:
    with transaction.atomic():
        call = CallQueue.objects.send(sample_tasks.echo, args=["hello"])
        assert CallQueue.objects.get(id=call.id).state == State.AVAILABLE
    assert CallQueue.objects.get(id=call.id).state == State.COMPLETED
    audit()


def test_a_backlog_runs_one_by_one_under_its_limit() -> None:
    RateLimitKey.objects.declare("books", concurrency=1)
    CallQueue.objects.send_many([Call(task=sample_tasks.echo, args=["hello"], keys=["books"])] * 60)
    assert set(CallQueue.objects.values_list("state", flat=True)) == {State.COMPLETED}
    audit(is_fifo=True)


def test_a_task_learns_which_of_several_keys_was_chosen() -> None:
    for name in ("egress:1", "egress:2"):
        RateLimitKey.objects.declare(name, concurrency=1)
    CallQueue.objects.send_many([Call(task=sample_tasks.chosen, keys=[api.any_of("egress:*")])] * 4)
    assert sorted(CallQueue.objects.values_list("result", flat=True)) == [
        "egress:1",
        "egress:1",
        "egress:2",
        "egress:2",
    ]
    audit(is_fifo=True)


def test_a_task_that_is_sent_by_delay_runs_at_once_and_is_no_call() -> None:
    with transaction.atomic():
        assert sample_tasks.echo.delay("hello").get() == "hello"
    with transaction.atomic(), pytest.raises(ValueError, match=r"^attempt 1$"):
        sample_tasks.fail.apply_async(args=[9], throw=True)
    assert not CallQueue.objects.exists()


@pytest.mark.ojs
def test_a_call_that_is_fetched_over_http_is_left_to_its_workers() -> None:
    Queue.objects.create(name="fetched", delivery="http")
    call = CallQueue.objects.send(sample_tasks.echo, args=["hello"], queue="fetched")
    engine.tick(now=timezone.now())
    assert CallQueue.objects.get(id=call.id).state == State.AVAILABLE


@pytest.fixture
def _propagates(_eager: None) -> Iterator[None]:
    sample_tasks.app.conf.task_eager_propagates = True
    yield
    sample_tasks.app.conf.task_eager_propagates = False


def send_in_transaction(task: Any, **fields: Any) -> CallQueue:
    with transaction.atomic():
        return CallQueue.objects.send(task, **fields)


def send_and_resume(task: Any, **fields: Any) -> CallQueue:
    api.pause(RateLimitKey.objects.declare("books").name)
    call = CallQueue.objects.send(task, keys=["books"], **fields)
    api.resume("books")
    return call


every_send = pytest.mark.parametrize("send", [CallQueue.objects.send, send_in_transaction, send_and_resume])


@every_send
@pytest.mark.usefixtures("_propagates")
def test_what_a_task_raises_reaches_its_sender_where_celery_propagates_it(send: Callable[..., CallQueue]) -> None:
    with pytest.raises(ValueError, match=r"^attempt 1$"):
        send(sample_tasks.fail, args=[9], retry={"max_attempts": 1})
    call = CallQueue.objects.get()
    assert (call.state, call.error["type"]) == (State.DISCARDED, "ValueError")
    audit()


@every_send
@pytest.mark.usefixtures("_propagates")
def test_what_a_task_raises_that_will_be_tried_again_reaches_its_sender_too(send: Callable[..., CallQueue]) -> None:
    with pytest.raises(ValueError, match=r"^attempt 1$"):
        send(sample_tasks.fail, args=[9])
    assert CallQueue.objects.get().state == State.RETRYABLE


@every_send
def test_what_a_task_raises_stays_in_its_call_where_celery_does_not_propagate_it(
    send: Callable[..., CallQueue],
) -> None:
    call = send(sample_tasks.fail, args=[9], retry={"max_attempts": 1})
    assert CallQueue.objects.get(id=call.id).state == State.DISCARDED


@pytest.mark.usefixtures("_propagates")
def test_a_task_that_fails_leaves_the_others_of_its_transaction_to_run() -> None:
    RateLimitKey.objects.declare("books", concurrency=1)
    once = {"max_attempts": 1}
    failing = Call(task=sample_tasks.fail, args=[9], keys=["books"], retry=once)
    with pytest.raises(ValueError, match=r"^attempt 1$"):
        CallQueue.objects.send_many([failing, *[Call(task=sample_tasks.echo, args=["hello"], keys=["books"])] * 20])
    states = CallQueue.objects.order_by("position").values_list("state", flat=True)
    assert list(states) == [State.DISCARDED, *[State.COMPLETED] * 20]
    audit()


def test_a_task_that_fails_is_tried_again_by_the_tick() -> None:
    call = CallQueue.objects.send(sample_tasks.fail, args=[2])
    assert CallQueue.objects.get(id=call.id).state == State.RETRYABLE
    eventually(lambda: engine.tick() or CallQueue.objects.get(id=call.id).state == State.COMPLETED)
    assert CallQueue.objects.get(id=call.id).attempt == 3
    audit()
