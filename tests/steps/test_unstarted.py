"""Calls that are published and come back without a start: they wait, each time for longer, and nothing is spent."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals

from dispatcher import engine, reports, sql
from dispatcher.audit import audit
from dispatcher.celery.fence import UnknownTasks
from dispatcher.engine import workers
from dispatcher.lifecycle import finish, heartbeat
from dispatcher.models import CallQueue, Slot
from dispatcher.states import State
from tests.builders import HERE, SECOND, committed, key, seen, states
from tests.steps.conftest import Broker

pytestmark = committed

TASK = "tests.unknown"


def sent(**fields: Any) -> CallQueue:
    return seen(CallQueue.objects.send(TASK, **fields))


def come(tasks: Sequence[str] | None, *, queues: Sequence[str] = ("celery",)) -> None:
    """Let a worker come, or come back, that knows these tasks."""
    workers.record_heartbeat(replace(HERE, queues=queues, tasks=tasks), [])


def meet(broker: Broker, call: CallQueue) -> Any:
    """Let a worker meet the message of a call whose task it does not know; return what became of the message."""
    (message,) = [each for each in broker.take() if each.headers["id"] == str(call.id)]
    fates: list[str] = []
    message.ack_log_error = lambda *_: fates.append("acknowledged")
    consumer = SimpleNamespace(on_unknown_task=lambda *_: fates.append("failed"), connection_errors=())
    UnknownTasks(consumer)
    consumer.on_unknown_task(None, message, KeyError(TASK))
    return fates


def wait_of(call: CallQueue) -> float:
    """Return for how many seconds from now a call is put off."""
    stored = seen(call)
    assert stored.state == State.SCHEDULED
    return float((stored.scheduled_at - sql.now()).total_seconds())


# Tasks that a worker does not know


def test_a_call_of_a_task_that_no_worker_knows_waits_and_spends_nothing(broker: Broker) -> None:
    key("api", concurrency=1)
    come(["tests.do"])
    call = sent(keys=["api"], retry={"max_attempts": 1})
    assert meet(broker, call) == ["acknowledged"]
    stored = seen(call)
    assert (stored.state, stored.attempt, stored.errors, stored.returns) == (State.SCHEDULED, 0, [], 1)
    assert 55 < wait_of(call) <= 60
    assert not Slot.objects.exists()
    assert sent(keys=["api"]).state == State.DISPATCHED


def test_a_worker_of_an_older_version_may_know_every_task(broker: Broker) -> None:
    come(None)
    call = sent()
    meet(broker, call)
    assert wait_of(call) < 1


def test_a_worker_that_comes_between_the_put_back_and_its_commit_is_seen(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    come([])
    call = sent()
    requeue = finish.requeue

    def come_late(*args: Any, **options: Any) -> Any:
        returned = requeue(*args, **options)
        heartbeat.record(replace(HERE, tasks=[TASK]), [])
        return returned

    monkeypatch.setattr(finish, "requeue", come_late)
    meet(broker, call)
    assert states([call]) == [State.DISPATCHED]


def test_a_plain_message_of_an_unknown_task_is_left_to_celery(broker: Broker) -> None:
    broker.app.send_task(TASK, task_id="00000000-0000-0000-0000-000000000001")
    assert meet(broker, CallQueue(id="00000000-0000-0000-0000-000000000001")) == ["failed"]


def test_a_message_that_celery_can_not_read_costs_an_attempt(broker: Broker) -> None:
    call = sent(retry={"max_attempts": 1})
    (message,) = broker.take()
    signals.task_rejected.send(sender=None, message=message, exc=ValueError("no arguments"))
    assert (seen(call).state, seen(call).error["type"]) == (State.DISCARDED, "ValueError")
    signals.task_rejected.send(sender=None, message=message, exc=None)


# Messages that are lost again and again


def lose_message(call: CallQueue) -> None:
    """Let the lease of an admitted call run out."""
    Slot.objects.filter(call_id=call.id).update(lease_until=sql.now() - SECOND)
    assert engine.recover(now=sql.now()) == 1


# What people see


def test_it_is_said_why_such_a_call_waits(broker: Broker) -> None:
    come(["tests.do"])
    call = sent()
    meet(broker, call)
    wait = reports.why_waiting(call.id)
    assert wait is not None
    assert (wait.queue, wait.task, wait.is_served, wait.is_known, wait.returns) == ("celery", TASK, True, False, 1)
    assert wait.until == seen(call).scheduled_at
    (task,) = reports.unstarted_tasks()
    assert task.as_json() == {
        "queue": "celery",
        "task": TASK,
        "waiting_count": 1,
        "returns": 1,
        "known": False,
    }


def noted() -> dict[str, Any]:
    return {note.check.name: note for note in audit(settle=timedelta(0)).notes}


def test_the_audit_names_calls_that_never_start(broker: Broker) -> None:
    come([TASK])
    call = sent()
    for number in range(3):
        assert noted()["unstarted"].count == 0, number
        lose_message(call)
    assert [finding.what for finding in noted()["unstarted"].findings] == [f"call {call.id}"]
