"""Results: AsyncResult shows the end of calls that Celery's own code never came to."""

from collections.abc import Callable, Iterator
from time import sleep
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import pytest
from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery import Celery, current_app, states
from celery.app.task import Context
from celery.exceptions import ChordError, TaskRevokedError
from celery.result import AsyncResult, GroupResult
from celery.utils import uuid
from django.db import OperationalError, connection
from django.utils import timezone
from pytest_django import Settings

from dispatcher import api, engine, tasks
from dispatcher.celery import failures, results
from dispatcher.ending import InFlight, completed, error_of
from dispatcher.engine import ends
from dispatcher.errors import WorkerLost
from dispatcher.lifecycle import claim, schedule
from dispatcher.lifecycle.finish import Ended
from dispatcher.models import CallQueue, Queue, ResultCursor
from project.processes import free_port
from tests.builders import SECOND, committed, held, key, ticket_of
from tests.races.lockstep import at_once, eventually
from tests.steps.conftest import app as ordinary_app
from tests.steps.conftest import make_app

pytestmark = [committed, pytest.mark.pooler]


def nothing() -> None:
    """Do nothing."""


@pytest.fixture(autouse=True)
def app() -> Iterator[Celery]:
    """Be an app whose backend is in this process, and that has stored what ended before."""
    made = make_app("results", backend="cache+memory://")
    made.conf.task_ignore_result = False
    made.task(name="tests.kept", shared=False)(nothing)
    made.task(name="tests.ignored", shared=False, ignore_result=True)(nothing)
    made.set_current()
    results._Round.rests_until = 0.0  # noqa: SLF001 -- another test's backend had failed
    assert results.report() == 0
    yield made
    ordinary_app.set_current()


def sent(task: str = "tests.kept", **fields: Any) -> CallQueue:
    """Send a call that waits."""
    key("closed")
    api.pause("closed")
    return CallQueue.objects.send(task, keys=["closed"], **fields)


def result_of(call: CallQueue) -> AsyncResult:
    return AsyncResult(str(call.id))


def cancel(call: CallQueue) -> None:
    api.cancel([call.id])


def expire(call: CallQueue) -> None:
    CallQueue.objects.filter(id=call.id).update(expires_at=timezone.now())
    eventually(lambda: schedule.discard_expired() or CallQueue.objects.get(id=call.id).state == "discarded")


def drop(call: CallQueue) -> None:
    CallQueue.objects.filter(id=call.id).update(state="discarded", reason="queue_full", finished_at=timezone.now())


every_end = pytest.mark.parametrize("end", [cancel, expire, drop])


@every_end
def test_a_call_that_no_worker_ended_is_revoked(end: Callable[[CallQueue], object]) -> None:
    call = sent()
    end(call)
    assert result_of(call).state == states.PENDING
    assert results.report() == 1
    assert result_of(call).state == states.REVOKED
    with pytest.raises(TaskRevokedError, match=r"cancelled|expired|queue_full"):
        result_of(call).get(timeout=1)


def test_a_call_whose_worker_was_lost_for_good_has_failed() -> None:
    call = CallQueue.objects.send("tests.kept", retry={"max_attempts": 1})
    ticket = ticket_of(CallQueue.objects.get(id=call.id))
    claim.claim(call.id, ticket)
    assert engine.lose([held(call)], WorkerLost("its worker fell silent"), is_crash=True)
    results.report()
    assert result_of(call).state == states.FAILURE
    with pytest.raises(WorkerLost, match="fell silent"):
        result_of(call).get(timeout=1)


def test_a_result_that_is_there_stays() -> None:
    call = sent()
    result_of(call).backend.mark_as_done(str(call.id), "done")
    api.cancel([call.id])
    assert results.report() == 0
    assert result_of(call).state == states.SUCCESS


def test_a_task_that_ignores_its_results_has_none(app: Celery) -> None:
    call = sent("tests.ignored")
    api.cancel([call.id])
    assert results.report() == 0
    app.conf.task_ignore_result = True
    unknown = sent("tests.elsewhere")
    api.cancel([unknown.id])
    assert results.report() == 0
    assert result_of(call).state == result_of(unknown).state == states.PENDING


def test_nothing_is_stored_twice_and_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_BATCH", 2)
    calls = [sent() for _ in range(5)]
    api.cancel([call.id for call in calls[:3]])
    api.cancel([call.id for call in calls[3:]])
    assert results.report() == 5
    assert {result_of(call).state for call in calls} == {states.REVOKED}
    assert results.report() == 0


def test_they_are_stored_without_use_tz_too(settings: Settings) -> None:
    settings.USE_TZ = False
    connection.close()
    call = sent()
    api.cancel([call.id])
    assert results.report() == 1
    connection.close()


def test_a_backend_that_fails_harms_nothing_and_is_tried_again(
    app: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call = sent()
    api.cancel([call.id])

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("refused")

    with monkeypatch.context() as patch:
        patch.setattr(app.tasks["tests.kept"].backend, "store_result", fail)
        assert results.report() == 0
    assert "the result backend failed" in caplog.text
    assert results._Round.rests_until > 0  # noqa: SLF001 -- it is left alone for a while
    assert results.report() == 1
    assert result_of(call).state == states.REVOKED


@pytest.mark.parametrize("step", ["_next", "_advance"])
def test_a_database_that_fails_is_named_and_the_result_backend_is_not(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    api.cancel([sent().id])
    gone = "the server is gone"

    def fail(*_: Any) -> None:
        raise OperationalError(gone)

    with monkeypatch.context() as patch:
        patch.setattr(results, step, fail)
        results.report()
    assert "the database of the calls failed" in caplog.text
    assert f"The database 'default' is unavailable: {gone}" in caplog.text
    assert "result backend" not in caplog.text
    assert "Traceback" not in caplog.text


def test_a_database_that_is_away_is_not_taken_for_the_backend(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    call = sent()
    api.cancel([call.id])
    monkeypatch.setitem(connection.settings_dict, "PORT", str(free_port()))
    monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
    assert results.report() == 0
    monkeypatch.undo()
    assert "The database 'default' is unavailable" in caplog.text
    assert "backend" not in caplog.text
    results.report_soon()
    eventually(lambda: result_of(call).state == states.REVOKED)


def test_what_ended_long_ago_is_not_stored() -> None:
    call = sent()
    api.cancel([call.id])
    day = 86_400 * SECOND
    CallQueue.objects.filter(id=call.id).update(finished_at=timezone.now() - 2 * day)
    ResultCursor.objects.update(finished_at=timezone.now() - 3 * day)
    assert results.report() == 0


@pytest.mark.parametrize("backend", [None, "rpc://"])
def test_without_a_backend_that_others_can_read_nothing_is_stored(
    backend: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app("nothing", backend=backend)
    app.set_current()
    monkeypatch.setattr(type(app.backend), "store_result", lambda *_, **__: pytest.fail("a result was stored"))
    call = sent("tests.elsewhere")
    api.cancel([call.id])
    assert results.report() == 0


def test_a_sender_that_waits_at_a_queue_of_its_own_gets_the_end(settings: Any) -> None:
    make_app("rpc", backend="rpc://").set_current()
    settings.DISPATCHER = {"keys": {"closed": {"concurrency": 0}}, "tasks": {"tests.kept": ["closed"]}}
    result = current_app.send_task("tests.kept")
    api.cancel(result.id)
    assert results.report() == 1
    with pytest.raises(TaskRevokedError, match="cancelled"):
        result.get(timeout=10)


@pytest.mark.parametrize("error", [WorkerLostError("gone"), TimeLimitExceeded(1), SystemExit(1)])
@pytest.mark.parametrize("delivery", ["direct", "broker"])
def test_a_call_whose_process_was_killed_has_failed(delivery: str, error: BaseException) -> None:
    call = sent(queue="mail")
    Queue.objects.update_or_create(name="mail", defaults={"delivery": delivery})
    ended = {"state": "discarded", "reason": "failed", "finished_at": timezone.now()}
    CallQueue.objects.filter(id=call.id).update(**ended, error=error_of(error, 1))
    assert results.report() == 1
    assert result_of(call).state == states.FAILURE


def test_a_call_whose_process_was_lost_before_celery_had_its_result_does_not_stay_pending(app: Celery) -> None:
    call = CallQueue.objects.send("tests.kept")
    claim_id = uuid4()
    gone = InFlight(call_id=call.id, ticket=ticket_of(CallQueue.objects.get(id=call.id)), claim=claim_id)
    claim.claim(gone.call_id, gone.ticket, claim_id=claim_id)
    end = Ended(call_id=gone.call_id, ticket=gone.ticket, claim_id=claim_id, ending=completed("done"))
    assert ends.record([end])
    for _ in range(2):
        failures.lose(app, gone, WorkerLostError("gone"), hostname="here", send_event=Mock())
        eventually(lambda: result_of(call).state == states.FAILURE)
    assert CallQueue.objects.get(id=call.id).state == "completed"


@pytest.mark.parametrize(
    ("error", "state", "expected"),
    [
        (Terminated(15), "cancelled", TaskRevokedError("terminated")),
        (TimeLimitExceeded(1.5), "discarded", TimeLimitExceeded(1.5)),
    ],
)
def test_the_result_of_what_was_cut_off_is_celerys_own(error: Exception, state: str, expected: Exception) -> None:
    call = sent(queue="mail")
    Queue.objects.update_or_create(name="mail", defaults={"delivery": "direct"})
    ended = {"state": state, "reason": "failed" if state == "discarded" else None, "finished_at": timezone.now()}
    CallQueue.objects.filter(id=call.id).update(**ended, attempt=1, error=error_of(error, 1))
    current_app.conf.result_extended = True
    assert results.report() == 1
    found = result_of(call)
    assert (type(found.result), found.result.args, found.retries) == (type(expected), expected.args, 0)


def with_options(call: CallQueue, **options: Any) -> CallQueue:
    """Give a call what its message has beside its arguments."""
    CallQueue.objects.filter(id=call.id).update(options=options)
    return call


@pytest.mark.parametrize("task", ["tests.kept", "tests.ignored"])
@pytest.mark.parametrize("backend", ["cache+memory://", None])
@every_end
def test_the_error_callbacks_of_a_call_that_no_worker_ended_run(
    end: Callable[[CallQueue], object], backend: str | None, task: str
) -> None:
    app = make_app("errbacks", backend=backend)
    errors: list[tuple[str, BaseException]] = []
    app.task(name="tests.kept", shared=False)(nothing)
    app.task(name="tests.ignored", shared=False, ignore_result=True)(nothing)

    @app.task(name="tests.on_error", shared=False)
    def on_error(request: Any, error: BaseException, traceback: object) -> None:
        errors.append((request.id, error))

    app.set_current()
    call = with_options(sent(task), errbacks=[on_error.s()])
    end(call)
    assert results.report() == 1
    assert results.report() == 0
    ((called_for, error),) = errors
    assert called_for == str(call.id)
    assert isinstance(error, TaskRevokedError)


def test_what_waits_for_a_call_runs_once_where_two_processes_store_results(app: Celery) -> None:
    errors: list[str] = []

    @app.task(name="tests.slow_on_error", shared=False)
    def on_error(request: Any, *_: object) -> None:
        sleep(0.3)
        errors.append(request.id)

    def report() -> int:
        app.set_current()
        return results.report()

    calls = [with_options(sent(), errbacks=[on_error.s()]) for _ in range(3)]
    api.cancel([call.id for call in calls])
    assert sorted(at_once(report, report)) == [0, 3]
    assert errors == [str(call.id) for call in calls]


def test_a_slow_backend_is_written_to_for_a_bounded_time_and_nothing_twice(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[str] = []
    monkeypatch.setattr(app.tasks["tests.kept"].backend, "store_result", lambda call, *_, **__: stored.append(call))
    clock = iter(range(100))
    monkeypatch.setattr(results, "monotonic", lambda: next(clock))
    calls = [sent() for _ in range(5)]
    api.cancel([call.id for call in calls])
    assert [results.report(budget=3) for _ in range(3)] == [2, 2, 1]
    assert sorted(stored) == [str(call.id) for call in calls]


@every_end
def test_a_chord_with_a_member_that_no_worker_ended_closes(app: Celery, end: Callable[[CallQueue], object]) -> None:
    members = [sent(), sent()]
    header = GroupResult(uuid(), [result_of(call) for call in members], app=app)
    body = app.signature("tests.kept", task_id=uuid())
    app.backend.apply_chord((header.id, header.results), body)
    for call in members:
        with_options(call, chord=body, group_id=header.id)
    request = Context(id=str(members[0].id), chord=body, group=header.id)
    app.backend.mark_as_done(str(members[0].id), "done", request=request)
    CallQueue.objects.filter(id=members[0].id).update(state="completed")
    end(members[1])
    assert AsyncResult(body.id).state == states.PENDING
    assert results.report() == 1
    with pytest.raises(ChordError, match="TaskRevokedError"):
        AsyncResult(body.id).get(timeout=1)


def test_what_waited_for_a_call_and_fails_keeps_no_other_from_its_end(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    calls = [with_options(sent(), errbacks=5), sent()]
    api.cancel([call.id for call in calls])
    assert results.report() == 2
    assert "could not be ended" in caplog.text
    assert {result_of(call).state for call in calls} == {states.REVOKED}


def test_the_recovery_stores_them_and_does_not_wait() -> None:
    call = sent()
    api.cancel([call.id])
    tasks.recover()
    eventually(lambda: result_of(call).state == states.REVOKED)


def test_what_ended_shortly_before_the_very_first_round_is_stored() -> None:
    ResultCursor.objects.all().delete()
    call = sent()
    api.cancel([call.id])
    assert results.report() == 1
    assert AsyncResult(str(call.id)).state == states.REVOKED
