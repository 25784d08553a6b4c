"""Pull: calls that workers fetch over HTTP: who gets them, under which lease, and whose reports count."""

from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from celery import current_app
from django.db import connection
from django.db.models.functions import Now

from dispatcher import engine, lanes, sql
from dispatcher.ending import Reported
from dispatcher.engine import ends, workers
from dispatcher.lifecycle import claim
from dispatcher.models import CallQueue, Process, Queue, RateLimitKey, Slot
from dispatcher.ojs import enqueue, pull_workers, worker_reports
from dispatcher.ojs import fetch as pull
from dispatcher.ojs.fetch import FetchRequest
from dispatcher.ojs.jobs import OjsOptions
from dispatcher.ojs.models import Job, PullWorker
from dispatcher.ojs.worker_reports import Progress, RejectedReport
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import HERE, SECOND, committed, seen
from tests.races.lockstep import holding

pytestmark = [committed, pytest.mark.pooler]

BROKEN = Reported(type="smtp.refused", message="no", classes=["smtp.refused"], more={"code": "handler_error"})
ANOTHERS = RejectedReport(state=State.ACTIVE, is_anothers=True)


@pytest.fixture(autouse=True)
def _pulled(db: None, broker: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(current_app.tasks, "mail.celery", current_app.tasks["celery.map"])
    Queue.objects.create(name="mail", delivery="http")


def send(count: int = 1, *, queue: str = "mail", **fields: Any) -> list[CallQueue]:
    return CallQueue.objects.send_many([Call(task="mail.send", queue=queue, **fields) for _ in range(count)])


def fetch(*queues: str, **fields: Any) -> list[CallQueue]:
    return pull.fetch(FetchRequest(queues=queues or ("mail",), **fields))


# What a fetch gives


LOCKED = "LOCK TABLE dispatcher_slot IN SHARE MODE"


def test_a_fetch_whose_trip_waited_for_a_lock_too_long_makes_another(monkeypatch: pytest.MonkeyPatch) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    (call,) = send(keys=["api"])
    with holding(LOCKED) as held:
        monkeypatch.setattr(pull, "sleep", lambda _: held.rollback())
        assert [each.id for each in fetch()] == [call.id]


def test_a_report_whose_trip_waited_for_a_lock_too_long_is_recorded_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    send(keys=["api"])
    (call,) = fetch()
    with holding(LOCKED) as held:
        monkeypatch.setattr(ends, "sleep", lambda _: held.rollback())
        worker_reports.ack(call.id, result=None, ticket=call.ticket)
    assert seen(call).state == State.COMPLETED


def test_what_a_fetch_has_started_is_answered_though_its_next_trip_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    first, _ = send(2, keys=["api"])
    with ExitStack() as locks:
        monkeypatch.setattr(pull.dispenser, "serve", lambda _: locks.enter_context(holding(LOCKED)))
        assert [each.id for each in fetch(count=2, wait=timedelta(seconds=5))] == [first.id]


def test_a_call_of_a_pulled_queue_is_never_given_to_celery() -> None:
    (call,) = send()
    lone = CallQueue.objects.send("mail.send", queue="mail")
    engine.tick(now=None)
    assert [seen(each).state for each in (call, lone)] == [State.AVAILABLE, State.AVAILABLE]


def test_a_fetch_of_plain_calls_is_few_statements(monkeypatch: pytest.MonkeyPatch) -> None:
    RateLimitKey.objects.declare("api", concurrency=100)
    send(10, keys=["api"])
    asked, ask = list[str](), sql.ask
    monkeypatch.setattr(sql, "ask", lambda name, row, params: (asked.append(name), ask(name, row, params))[1])
    assert len(fetch(count=3)) == 3
    assert asked == ["fetchable_queues", "tune", "take", "fitting_calls", "tune", "read_calls", "read_jobs"]


def test_a_fetch_goes_through_its_queues_in_their_order_and_by_priority() -> None:
    Queue.objects.create(name="bulk", delivery="http")
    low, high = send(priority=-5)[0], send(priority=5)[0]
    (bulk,) = send(queue="bulk", priority=100)
    assert [call.id for call in fetch("mail", "bulk", count=5)] == [high.id, low.id, bulk.id]


def test_a_queue_first_named_over_http_is_fetched_unless_celery_has_to_do_with_it() -> None:
    CallQueue.objects.send("noop", queue="old")
    for name in ("old", "new", "new"):
        lanes.open_queue(name)
    assert dict(Queue.objects.values_list("name", "delivery")) == {"mail": "http", "old": "broker", "new": "http"}


def test_a_queue_that_was_only_named_is_served_by_the_first_that_comes() -> None:
    for name in ("mine", "celerys"):
        lanes.open_queue(name)
        CallQueue.objects.send("mail.celery", args=[None, []], queue=name)
    assert enqueue.assign_queues(["mine"]) == []
    workers.record_heartbeat(replace(HERE, queues=["mine", "celerys"]), [])
    assert enqueue.assign_queues(["mine", "celerys"]) == ["celerys"]
    # The call that waited was let in at once.
    assert dict(CallQueue.objects.values_list("queue", "state")) == {"mine": "available", "celerys": "dispatched"}


# Whose report counts


def test_a_report_that_is_repeated_is_answered_as_the_first() -> None:
    send(retry={"max_attempts": 2, "initial_interval": 0})
    (call,) = fetch()
    for _ in range(2):
        failed = worker_reports.nack(call.id, BROKEN, ticket=call.ticket)
        assert isinstance(failed, CallQueue)
        assert (failed.state, failed.error_count) == ("available", 1)
    (again,) = fetch()
    for proof in ({"ticket": call.ticket}, {"attempt": 1}):
        assert worker_reports.nack(call.id, BROKEN, **proof) == ANOTHERS  # type: ignore[arg-type]
        assert worker_reports.record_progress(call.id, Progress(progress=0.5), **proof) == ANOTHERS  # type: ignore[arg-type]
    for _ in range(2):
        done = worker_reports.ack(call.id, result="first", attempt=2, ticket=again.ticket)
        assert isinstance(done, CallQueue)
        assert (done.state, done.result) == (State.COMPLETED, "first")
    assert isinstance(worker_reports.ack(call.id, result="second", ticket=again.ticket), CallQueue)
    assert seen(call).result == "first"
    assert worker_reports.nack(call.id, BROKEN, ticket=again.ticket) == RejectedReport(state=State.COMPLETED)


def test_the_number_of_an_attempt_shows_no_repeat() -> None:
    send()
    (call,) = fetch(worker="one")
    assert isinstance(worker_reports.ack(call.id, result="first", attempt=1, worker="one"), CallQueue)
    assert worker_reports.ack(call.id, result="second", attempt=1, worker="one") == RejectedReport(
        state=State.COMPLETED
    )


def test_the_number_of_an_attempt_takes_no_call_from_the_next_worker() -> None:
    send()
    (call,) = fetch(worker="one")
    worker_reports.requeue(call.id, ticket=call.ticket)
    (again,) = fetch(worker="two")
    assert again.attempt == call.attempt == 1
    for worker in (None, "one"):
        proof: worker_reports.Proof = {"attempt": 1, "worker": worker}
        assert worker_reports.ack(call.id, result="stale", **proof) == ANOTHERS
        assert worker_reports.nack(call.id, BROKEN, **proof) == ANOTHERS
        assert worker_reports.report_rate_limit(call.id, SECOND, **proof) == ANOTHERS
        assert worker_reports.requeue(call.id, **proof) == ANOTHERS
    assert seen(call).state == State.ACTIVE
    assert isinstance(worker_reports.ack(call.id, result=None, attempt=1, worker="two"), CallQueue)


def test_a_call_that_runs_in_celery_is_not_reported_over_http() -> None:
    (call,) = send(queue="celerys")
    claim.claim(call.id, seen(call).ticket)  # type: ignore[arg-type]
    assert worker_reports.ack(call.id, result=None) == RejectedReport(state=State.ACTIVE)
    assert worker_reports.cancel(call.id) == RejectedReport(state=State.ACTIVE)


@pytest.mark.parametrize("final", ["smtp.refused", "smtp.*"])
def test_a_failure_that_is_named_final_ends_the_call(final: str) -> None:
    send(retry={"max_attempts": 9, "non_retryable_errors": [final]})
    (call,) = fetch()
    ended = worker_reports.nack(call.id, BROKEN)
    assert isinstance(ended, CallQueue)
    assert ended.state == "discarded"


# Leases


def test_a_call_after_whose_fetches_no_worker_is_seen_ends_all_the_same() -> None:
    send(extras=OjsOptions(visibility=SECOND), retry={"max_attempts": 2})
    attempts = []
    while (fetched := fetch()) and len(attempts) < 9:
        attempts.append(fetched[0].attempt)
        engine.tick(now=fetched[0].started_at + 2 * SECOND)
    assert attempts == [1, 1, 1, 2, 2, 2]
    assert CallQueue.objects.get().state == State.DISCARDED


def test_a_heartbeat_renews_the_lease_but_not_the_time_of_the_attempt() -> None:
    send(extras=OjsOptions(visibility=10 * SECOND, timeout=60 * SECOND), retry={"initial_interval": 3600})
    (call,) = fetch(worker="one")
    (slot,) = Slot.objects.all()
    assert pull_workers.heartbeat("one", [call.id], lease=30 * SECOND).kept == [call.id]
    renewed = Slot.objects.get()
    assert renewed.pulled_until > slot.pulled_until + 15 * SECOND
    pull_workers.heartbeat("one", [call.id], lease=3600 * SECOND)
    assert Slot.objects.get().pulled_until == call.started_at + 60 * SECOND
    engine.tick(now=call.started_at + 61 * SECOND)
    assert (seen(call).state, seen(call).error["type"]) == ("retryable", "AttemptTimedOut")


def test_the_recovery_of_celerys_workers_leaves_fetched_calls_alone() -> None:
    send(extras=OjsOptions(visibility=3600 * SECOND))
    (call,) = fetch()
    Slot.objects.update(lease_until=call.started_at - SECOND)
    assert engine.recover(now=call.started_at + SECOND) == 0
    assert seen(call).state == State.ACTIVE


def test_a_worker_that_is_long_gone_is_forgotten() -> None:
    pull_workers.touch_worker("one")
    now = PullWorker.objects.get().seen_at
    engine.cleanup(now=now + timedelta(hours=23))
    assert PullWorker.objects.exists()
    engine.cleanup(now=now + timedelta(hours=25))
    assert not PullWorker.objects.exists()


def test_the_mark_of_a_fetch_whose_process_has_died_goes_with_the_workers() -> None:
    Process.objects.create(id=UUID(int=1), queues=["mail"], idle_at=Now() - timedelta(hours=25))
    Process.objects.create(id=UUID(int=2), queues=["mail"], idle_at=Now())
    engine.cleanup(now=None)
    assert list(Process.objects.values_list("id", flat=True)) == [UUID(int=2)]


def test_a_plain_call_has_no_row_beside_it_and_that_of_another_is_deleted_with_it() -> None:
    send()
    (kept,) = send(extras=OjsOptions(timeout=SECOND))
    assert [job.call_id for job in Job.objects.all()] == [kept.id]
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM dispatcher_callqueue")
    assert not Job.objects.exists()
