"""dispatcher.testing: calls run in the test's own process, in a transaction as of Django's TestCase, and without."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chord, uuid
from celery.result import AsyncResult
from django.db import transaction
from django.utils import timezone
from pytest_django import Settings

from dispatcher import api, sql
from dispatcher.errors import CallInvalid, RateLimited, UnknownKey
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.testing import at, capture, drain, inline, perform
from tests.steps.conftest import app as ordinary_app
from tests.steps.conftest import make_app

NOON = datetime(2031, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture(
    autouse=True,
    params=[
        pytest.param("in a TestCase", marks=pytest.mark.django_db),
        pytest.param("with commits", marks=pytest.mark.django_db(transaction=True)),
    ],
)
def _database(request: pytest.FixtureRequest) -> None:
    assert request.getfixturevalue("transactional_db" if request.param == "with commits" else "db") is None
    assert sql.in_transaction() == (request.param == "in a TestCase")


@pytest.fixture(autouse=True, params=["direct", "broker"])
def _delivery(request: pytest.FixtureRequest, broker: object, settings: Settings) -> None:
    settings.DISPATCHER = {"delivery": {"*": request.param}, "queue_grace": 30}


class Tasks:
    """The tasks of an app whose broker is away."""

    def __init__(self, app: Celery) -> None:
        self.app, self.done = app, list[Any]()

        @app.task(name="note", shared=False)
        def note(what: Any) -> Any:
            self.done.append(what)
            return what

        @app.task(name="fail", shared=False, bind=True)
        def fail(self: Any, times: int = 9) -> int:
            if self.request.retries < times:
                raise ValueError(f"attempt {self.request.retries + 1}")  # noqa: TRY003 -- what is asserted
            return int(self.request.retries)

        @app.task(name="follow", shared=False)
        def follow(what: Any, keys: Any = None) -> None:
            CallQueue.objects.send(note, args=[what], keys=keys)

        @app.task(name="stop", shared=False)
        def stop() -> None:
            self.done.append("asked")
            raise RateLimited(retry_after=60)

        self.note, self.fail, self.follow, self.stop = note, fail, follow, stop


@pytest.fixture
def tasks() -> Iterator[Tasks]:
    app = make_app("testing", broker="redis://127.0.0.1:1/0")
    app.set_current()
    yield Tasks(app)
    ordinary_app.set_current()


def test_a_limit_per_worker_leaves_room_for_the_next(tasks: Tasks, settings: Settings) -> None:
    settings.DISPATCHER = {"delivery": {"*": "direct"}}
    RateLimitKey.objects.declare("gpu", per_worker=1)
    CallQueue.objects.send_many([Call(tasks.note, args=[number], keys=["gpu"]) for number in range(3)])
    assert drain(with_limits=True) == {"completed": 3}


def state(call: CallQueue) -> str:
    return CallQueue.objects.get(id=call.id).state


def test_what_waits_runs_in_order_and_is_counted(tasks: Tasks) -> None:
    for number in range(3):
        CallQueue.objects.send(tasks.note, args=[number])
    CallQueue.objects.send(tasks.fail, retry={"max_attempts": 1})
    assert drain() == {"completed": 3, "discarded": 1}
    assert tasks.done == [0, 1, 2]
    assert drain() == {}


def test_what_a_call_sends_runs_too(tasks: Tasks) -> None:
    CallQueue.objects.send(tasks.follow, args=["next"])
    assert drain() == {"completed": 2}
    assert tasks.done == ["next"]


def test_what_a_task_does_after_its_commit_is_done(tasks: Tasks) -> None:
    @tasks.app.task(name="later", shared=False)
    def later() -> None:
        transaction.on_commit(lambda: tasks.done.append("committed"))

    CallQueue.objects.send(later)
    drain()
    assert tasks.done == ["committed"]


def test_a_chord_closes_by_what_its_members_returned(settings: Settings, tmp_path: Path) -> None:
    # Of a backend that closes no chord by itself: a task of Celery's looks again and again.
    tasks = Tasks(make_app("chords", broker="redis://127.0.0.1:1/0", backend=f"file://{tmp_path}"))
    tasks.app.conf.task_ignore_result = False
    tasks.app.set_current()
    settings.DISPATCHER |= {"tasks": {"*": []}}
    note, failed = tasks.note, tasks.note.si("failed")
    try:
        chord([note.s(1), note.s(2)], note.s()).delay()
        drain(with_scheduled=True)
        assert tasks.done == [1, 2, [1, 2]]
        # A member that waits for its time, in the lane of what looks for its end.
        chord([note.s(3).set(countdown=600), tasks.fail.s()], note.s().on_error(failed)).delay()
        drain(with_scheduled=True)
        assert tasks.done[3:] == [3, "failed"]
        # What is no call never ends here, and is not waited for.
        settings.DISPATCHER |= {"tasks": {"fail": None, "*": []}}
        lost = AsyncResult(uuid())
        tasks.app.tasks["celery.chord_unlock"].delay("group", note.s(), result=[lost.as_tuple()])
        assert set(drain(with_scheduled=True)) == {"retryable"}
    finally:
        ordinary_app.set_current()


def test_a_call_waits_for_its_time_unless_it_is_asked_for(tasks: Tasks) -> None:
    CallQueue.objects.send(tasks.note, args=["late"], scheduled_at=timezone.now() + HOUR)
    call = CallQueue.objects.send(tasks.fail, args=[2])
    assert drain() == {"retryable": 1}
    assert drain(with_scheduled=True) == {"completed": 2}
    assert (CallQueue.objects.get(id=call.id).attempt, tasks.done) == (3, ["late"])


def test_limits_do_not_count_unless_they_are_asked_for(tasks: Tasks) -> None:
    RateLimitKey.objects.declare("api", rate="2/m", concurrency=1)
    RateLimitKey.objects.declare("shut", concurrency=0)
    api.pause("shut")
    for number in range(5):
        CallQueue.objects.send(tasks.note, args=[number], keys=["api"])
    CallQueue.objects.send(tasks.note, args=["shut"], keys=["shut"])
    assert drain(with_limits=True) == {"completed": 2}
    assert drain() == {"completed": 4}
    assert (tasks.done[:2], {*tasks.done[2:]}) == ([0, 1], {2, 3, 4, "shut"})
    key = RateLimitKey.objects.get(name="api")
    assert (key.rate_limit, key.rate_period, key.concurrency) == (2, timedelta(minutes=1), 1)
    assert RateLimitKey.objects.get(name="shut").is_paused
    CallQueue.objects.send(tasks.note, args=["again"], keys=["shut"])
    assert drain(with_limits=True) == {}


def test_a_limit_that_a_task_sets_counts_at_once_and_stays(tasks: Tasks) -> None:
    RateLimitKey.objects.declare("api", concurrency=5)
    for _ in range(3):
        CallQueue.objects.send(tasks.stop, keys=["api"])
    assert drain() == {}
    assert tasks.done == ["asked"]
    key = RateLimitKey.objects.get(name="api")
    assert (key.blocked_until is not None, key.concurrency) == (True, 5)


def test_a_stop_without_a_key_is_asked_once(tasks: Tasks) -> None:
    CallQueue.objects.send(tasks.stop)
    assert drain(with_scheduled=True) == {}
    assert 1 <= len(tasks.done) <= 2


def test_time_goes_on_as_far_as_it_may(tasks: Tasks) -> None:
    RateLimitKey.objects.declare("api", rate=(2, HOUR))
    with at(NOON):
        for number in range(5):
            CallQueue.objects.send(tasks.note, args=[number], keys=["api"])
        assert drain(until=NOON + HOUR / 2, with_limits=True) == {"completed": 2}
        assert drain(until=NOON + 1.5 * HOUR, with_limits=True) == {"completed": 2}
        assert sql.now() == NOON
    with at(NOON + 3 * HOUR):
        assert drain(with_limits=True) == {"completed": 1}


def test_the_clock_of_calls_is_set(tasks: Tasks) -> None:
    call = CallQueue.objects.send(tasks.note.s("later").set(countdown=3600))
    with at(timezone.now() + 2 * HOUR):
        assert drain() == {"completed": 1}
    assert CallQueue.objects.get(id=call.id).finished_at > timezone.now() + HOUR
    with at(datetime(2020, 1, 1, tzinfo=UTC)):
        past = CallQueue.objects.send(tasks.note.s("past").set(countdown=60))
        assert past.scheduled_at == datetime(2020, 1, 1, 0, 1, tzinfo=UTC)
        assert drain() == {}
        assert drain(until=past.scheduled_at) == {"completed": 1}
        api.run_now([CallQueue.objects.send(tasks.note.s("now").set(countdown=60))])
        assert drain() == {"completed": 1}
    with pytest.raises(CallInvalid, match="moment"), at(datetime(2020, 1, 1)):  # noqa: DTZ001 -- that is the point
        pass
    assert sql.Clock.at is None


def test_a_call_that_expires_is_counted(tasks: Tasks) -> None:
    CallQueue.objects.send(tasks.note, args=["late"], expires_at=timezone.now() + HOUR)
    with at(timezone.now() + 2 * HOUR):
        assert drain() == {"discarded": 1}
    assert tasks.done == []


def test_an_unknown_task_is_named_and_its_call_waits_again(tasks: Tasks) -> None:
    call = CallQueue.objects.send("elsewhere")
    with pytest.raises(Exception, match="elsewhere"):
        drain()
    assert state(call) == "available"


def test_a_send_runs_at_once(tasks: Tasks) -> None:
    RateLimitKey.objects.declare("shut", concurrency=0)
    with inline():
        call = CallQueue.objects.send(tasks.note, args=[1], keys=["shut"], on_limit="drop")
        assert (call.state, call.result) == ("completed", 1)
        with transaction.atomic():
            CallQueue.objects.send(tasks.note, args=[2], scheduled_at=timezone.now() + HOUR)
            assert tasks.done == [1, 2]
        CallQueue.objects.send(tasks.follow, args=[3, ["shut"]])
        tasks.note.delay(4)
    assert tasks.done == [1, 2, 3, 4]
    assert not tasks.app.conf.task_always_eager
    assert CallQueue.objects.send(tasks.note, args=[5]).state == "available"
    assert tasks.done == [1, 2, 3, 4]


def test_a_send_under_limits_runs_as_far_as_they_allow(tasks: Tasks) -> None:
    RateLimitKey.objects.declare("api", rate="1/m")
    with inline(limits=True):
        states = [CallQueue.objects.send(tasks.note, args=[number], keys=["api"]).state for number in range(2)]
    assert states == ["completed", "available"]


def test_what_a_task_raises_reaches_who_sent_it_inline(tasks: Tasks) -> None:
    with inline():
        with pytest.raises(ValueError, match="attempt 1"):
            CallQueue.objects.send(tasks.fail, retry={"max_attempts": 1})
        with pytest.raises(ValueError, match="attempt 1"):
            tasks.fail.delay()
    assert CallQueue.objects.get().state == "discarded"


def test_what_is_sent_is_recorded_and_waits(tasks: Tasks) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    with capture() as sent:
        CallQueue.objects.send(tasks.note, args=[(1, NOON)], keys={"api": 1})
        CallQueue.objects.send("note", kwargs={"what": 2})
        with pytest.raises(UnknownKey):
            CallQueue.objects.send(tasks.note, args=[3], keys=["nowhere"])
    assert tasks.done == []
    (call,) = sent.assert_sent(tasks.note, args=[(1, NOON)], kwargs={}, keys=["api"], times=1)
    assert call.keys == {"api": 1}
    sent.assert_sent("note", times=2)
    sent.assert_sent("note", keys=[], times=1)
    sent.assert_sent("note", keys={"api": 1})
    sent.assert_sent("fail", times=0)
    for wrong in ({"args": [2]}, {"keys": {"api": 2}}, {"kwargs": {"what": 3}}, {"times": 1}):
        with pytest.raises(AssertionError, match=r"sent were:\n  Sent.*note"):
            sent.assert_sent("note", **wrong)
    with pytest.raises(AssertionError, match=r"\(task='fail'\) was to be sent at least once"):
        sent.assert_sent(tasks.fail)
    assert drain() == {"completed": 2}


def test_one_attempt_of_a_task_is_performed_and_nothing_else(tasks: Tasks) -> None:
    waiting = CallQueue.objects.send(tasks.note, args=["waits"])
    RateLimitKey.objects.declare("egress:1", concurrency=0)

    @tasks.app.task(name="chosen", shared=False)
    def chosen() -> str | None:
        call = api.current_call()
        return None if call is None else call.key

    assert perform(tasks.note, ["done"]).result == "done"
    assert perform(chosen, keys=[api.any_of("egress:*")]).result == "egress:1"
    assert perform(tasks.fail, [2], attempt=3).result == 2
    assert perform(tasks.fail, kwargs={"times": 9}, attempt=2).state == "retryable"
    last = perform(tasks.fail, attempt=3)
    assert (last.state, last.error["message"], last.attempt) == ("discarded", "attempt 3", 3)
    assert perform(tasks.follow, ["next"]).state == "completed"
    assert (tasks.done, state(waiting)) == (["done"], "available")
    with pytest.raises(CallInvalid, match="attempt"):
        perform(tasks.note, attempt=0)
    assert tasks.done == ["done"]
