"""The story of `task_always_eager`: a sender's own thread claims, runs, finishes and hands on, as a worker would."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import transaction

from dispatcher import engine
from dispatcher.calls import Call
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests.flows import stories
from tests.races.audit import audit
from tests.races.lockstep import concurrent, eventually

pytestmark = [concurrent, pytest.mark.usefixtures("sending")]


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("FLOWS_NOTES", str(tmp_path / "notes"))
    stories.app.conf.task_always_eager = True
    yield
    stories.app.conf.task_always_eager = False


def test_a_call_has_run_when_its_sender_goes_on() -> None:
    call = CallQueue.objects.send(stories.echo, args=["hello"])
    now = CallQueue.objects.get(id=call.id)
    assert (now.state, now.result, now.attempt) == (State.COMPLETED, "hello", 1)
    audit()


def test_a_call_runs_after_the_commit_and_not_before() -> None:
    with transaction.atomic():
        call = CallQueue.objects.send(stories.echo, args=["hello"])
        assert CallQueue.objects.get(id=call.id).state == State.AVAILABLE
    assert CallQueue.objects.get(id=call.id).state == State.COMPLETED
    audit()


def test_a_backlog_runs_one_by_one_under_its_limit() -> None:
    RateLimitKey.objects.declare("books", concurrency=1)
    CallQueue.objects.send_many([Call(task=stories.echo, args=["hello"], keys=["books"])] * 60)
    assert set(CallQueue.objects.values_list("state", flat=True)) == {State.COMPLETED}
    audit(is_fifo=True)


def test_a_task_that_fails_is_tried_again_by_the_tick() -> None:
    call = CallQueue.objects.send(stories.fail, args=[2])
    assert CallQueue.objects.get(id=call.id).state == State.RETRYABLE
    eventually(lambda: engine.tick() or CallQueue.objects.get(id=call.id).state == State.COMPLETED)
    assert CallQueue.objects.get(id=call.id).attempt == 3
    audit()
