"""Flows of calls in a real worker: they run, fail, are killed, come twice; each ends once, and leaves no slot."""

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction
from django.utils import timezone

from dispatcher.messages.tickets import TICKET_HEADER
from dispatcher.models import CallQueue, Process, Queue, RateLimitKey, Worker
from dispatcher.states import State
from tests.flows import sample_tasks
from tests.flows.one_slot import ended, send
from tests.flows.processes import Processes
from tests.flows.settings import QUEUE
from tests.races.audit import audit, use_now
from tests.races.lockstep import concurrent, eventually, holding
from tests.serving import Reply, Request, serving

pytestmark = [concurrent, pytest.mark.usefixtures("ticking"), pytest.mark.broker, pytest.mark.pooler]


@pytest.fixture(autouse=True, params=["broker", "direct"])
def _one_at_a_time(worker: Processes, request: pytest.FixtureRequest) -> Iterator[None]:
    Queue.objects.update_or_create(name=QUEUE, defaults={"delivery": request.param})
    RateLimitKey.objects.declare("api", concurrency=1)
    yield
    assert use_now(["api"]) == {"api": 0}
    audit()


def test_a_call_that_is_sent_is_run_and_completed(worker: Processes) -> None:
    call = ended(send(sample_tasks.echo, "hello"))
    assert (call.state, call.result, call.attempt, call.error) == (State.COMPLETED, "hello", 1, None)
    assert call.created_at <= call.dispatched_at <= call.started_at <= call.finished_at
    assert worker.noted(call.id) == 1


def test_a_task_that_replaces_itself_leaves_its_call_to_the_other_one(worker: Processes) -> None:
    call = ended(send(sample_tasks.hand_over, "hello", retry={"max_attempts": 1}))
    assert (call.state, call.result, call.attempt, call.error) == (State.COMPLETED, "hello", 1, None)
    assert call.task == sample_tasks.echo.name
    assert worker.noted(call.id) == 2


def test_a_task_sees_the_priority_of_its_message_as_of_one_that_celery_sent(worker: Processes) -> None:
    task = sample_tasks.return_its_priority
    calls = [send(task), send(task, priority=9), send(task.s().set(priority=5))]
    assert [ended(call).result for call in calls] == [0, 0, 5]


def test_a_task_sees_the_request_of_a_message_that_celery_sent(worker: Processes) -> None:
    options = {"time_limit": 30, "soft_time_limit": 20}
    call, plain = send(sample_tasks.return_its_request.s().set(**options)), sample_tasks.echo.delay("plain")
    hostname, *others = ended(call).result
    assert others == [QUEUE, [30, 20], 0]
    output = worker.stack.children["worker"].output
    for task, sent in ((sample_tasks.return_its_request, call.id), (sample_tasks.echo, plain.id)):
        for event in ("received", "succeeded in"):
            eventually(lambda line=f"Task {task.name}[{sent}] {event}": line in output())  # type: ignore[misc]
    # The test before has emptied the tables: the next heartbeat writes its row again.
    eventually(Worker.objects.filter(name=hostname).exists)


@pytest.mark.needs_pooler
@pytest.mark.parametrize("_one_at_a_time", ["direct"], indirect=True)
def test_an_idle_worker_without_notifications_finds_calls_by_polling(worker: Processes) -> None:
    spans = []
    for _ in range(3):
        # Long enough for its polls to become as seldom as they do.
        time.sleep(2.2)
        call = ended(send(sample_tasks.echo, "hello"))
        spans.append(call.started_at - call.created_at)
    assert not Process.objects.exclude(idle_at=None).exists(), "behind a pooler no worker listens"
    assert max(spans) < timedelta(seconds=2), "it polls each second"


def test_a_call_that_was_rolled_back_never_existed(worker: Processes) -> None:
    with transaction.atomic():
        gone = send(sample_tasks.echo, "gone")
        transaction.set_rollback(True)
    ended(send(sample_tasks.echo, "there"))
    assert not CallQueue.objects.filter(id=gone.id).exists()
    assert worker.noted(gone.id) == 0


@pytest.mark.parametrize("task", [sample_tasks.fail, sample_tasks.fail_and_be_retried, sample_tasks.fail_and_ask])
def test_a_task_that_fails_twice_succeeds_at_its_third_attempt(worker: Processes, task: Any) -> None:
    call = ended(send(task, 2))
    assert (call.state, call.attempt, call.result) == (State.COMPLETED, 3, 3)
    assert [(error["type"], error["attempt"]) for error in call.errors] == [("ValueError", 1), ("ValueError", 2)]
    assert worker.noted(call.id) == 3


def test_an_attempt_that_outstays_its_time_limit_is_ended_and_the_call_tried_again(worker: Processes) -> None:
    call = ended(send(sample_tasks.outstay, 1))
    assert (call.state, call.result, call.attempt) == (State.COMPLETED, "in time", 2)
    assert [error["type"] for error in call.errors] == ["TimeLimitExceeded"]


# With direct delivery the outcome is recorded outside of the process.
@pytest.mark.parametrize("_one_at_a_time", ["broker"], indirect=True)
def test_a_soft_time_limit_that_comes_while_the_outcome_is_recorded_does_not_change_it(
    worker: Processes, tmp_path: Path
) -> None:
    call = send(sample_tasks.wait_for_a_file_in_time, str(tmp_path / "there"))
    eventually(lambda: worker.noted(call.id))
    with holding("LOCK TABLE dispatcher_ratelimitkey IN ACCESS EXCLUSIVE MODE"):
        (tmp_path / "there").touch()
        eventually(lambda: f"Soft time limit (3s) exceeded for {call.task}[{call.id}]" in output_of(worker))
    there = ended(call)
    assert (there.state, there.result, there.attempt, there.errors) == (State.COMPLETED, "there", 1, [])
    eventually(lambda: worker.noted(call.id, "end") == 1)
    assert f"{call.task}[{call.id}] succeeded" in output_of(worker)
    # As many as there are processes: one of them has the connection that was broken off.
    assert {ended(send(sample_tasks.echo, "next", keys=[])).state for _ in range(4)} == {State.COMPLETED}


def output_of(worker: Processes) -> str:
    return worker.stack.children["worker"].output()


def test_an_attempt_whose_process_is_killed_frees_its_slots_at_once_and_the_call_is_tried_again(
    worker: Processes,
) -> None:
    call = ended(send(sample_tasks.die, 1))
    assert (call.state, call.result, call.attempt) == (State.COMPLETED, "alive", 2)
    assert [error["type"] for error in call.errors] == ["WorkerLostError"]


def test_a_message_that_is_delivered_again_does_nothing(worker: Processes) -> None:
    sent = send(sample_tasks.nap, 0.3)
    ticket = eventually(CallQueue.objects.filter(id=sent.id, state=State.ACTIVE).values_list("ticket", flat=True).first)
    publish_again(sent.id, ticket)
    call = ended(sent)
    publish_again(sent.id, ticket)
    eventually(lambda: worker.noted(sent.id, "end") == 3)
    assert worker.noted(sent.id) == 1
    assert CallQueue.objects.get(id=sent.id).finished_at == call.finished_at


def publish_again(call: UUID, ticket: UUID) -> None:
    """Publish a message as the dispatcher does."""
    sample_tasks.app.send_task(
        "tests.flows.sample_tasks.nap", args=[0.3], task_id=str(call), headers={TICKET_HEADER: str(ticket)}, queue=QUEUE
    )


def test_a_task_that_is_sent_without_the_dispatcher_runs_as_always(worker: Processes) -> None:
    plain = sample_tasks.echo.delay("plain")
    retried = sample_tasks.fail_and_ask.delay(1)
    eventually(lambda: worker.noted(plain.id, "end") == 1 and worker.noted(retried.id) == 2)
    assert not CallQueue.objects.exists()


def test_a_message_that_is_revoked_before_its_start_cancels_its_call(worker: Processes) -> None:
    # Long enough for the second process to find its call: behind a pooler it looks once a second.
    busy = [send(sample_tasks.nap, 2, keys=[]) for _ in range(2)]
    eventually(lambda: CallQueue.objects.filter(state=State.ACTIVE).count() == 2)
    revoked = send(sample_tasks.echo, "revoked")
    sample_tasks.app.control.revoke(str(revoked.id))
    for call in busy:
        assert ended(call).state == State.COMPLETED
    call = ended(revoked)
    assert (call.state, call.attempt, worker.noted(call.id)) == (State.CANCELLED, 0, 0)


@pytest.mark.slow
def test_a_long_task_keeps_its_lease_by_the_heartbeat(worker: Processes) -> None:
    call = ended(send(sample_tasks.nap, 2.5))
    assert (call.state, call.attempt, call.errors) == (State.COMPLETED, 1, [])
    assert call.finished_at - call.started_at > timedelta(seconds=2)


def test_a_provider_that_says_stop_costs_time_and_no_attempt(worker: Processes, tmp_path: Path) -> None:
    call = ended(send(sample_tasks.be_rate_limited, str(tmp_path / "limited")))
    assert (call.state, call.attempt, call.errors, worker.noted(call.id)) == (State.COMPLETED, 1, [], 2)
    assert call.started_at - call.created_at > timedelta(seconds=0.3)


def test_call_data_makes_the_http_call_and_waits_as_a_429_says(worker: Processes) -> None:
    bodies: list[bytes] = []

    def refuse_first(asked: Request) -> Reply:
        bodies.append(asked.body)
        return 429 if len(bodies) == 1 else 200, {"Retry-After": "1"}, b"ok"

    with serving(refuse_first) as address:
        data = {"method": "post", "params": {"url": address, "json": {"order": 7}}}
        sent = CallQueue.objects.send(call_data=data, keys=["api"], queue=QUEUE)
        blocked_until = eventually(
            RateLimitKey.objects.filter(name="api").values_list("blocked_until", flat=True).first
        )
        assert timedelta(0) < blocked_until - timezone.now() <= timedelta(seconds=1)
        call = ended(sent)
    assert (call.state, call.attempt, call.errors) == (State.COMPLETED, 1, [])
    assert call.result == {"status": 200, "text": "ok"}
    assert call.started_at >= blocked_until
    assert bodies == [b'{"order": 7}'] * 2
