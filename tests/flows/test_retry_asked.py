"""A task asks for another attempt in Celery's way, and gets none: the call ends, and the worker lives on."""

import pickle
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Never

import pytest
from celery import Celery, Task
from celery.exceptions import MaxRetriesExceededError, Retry

from dispatcher.lifecycle.run import Failed, RetryAsked, run
from dispatcher.models import CallQueue
from dispatcher.states import State
from project.celery import app as project_app
from tests.apps import APPS


class Unpicklable(Exception):
    def __reduce__(self) -> Never:
        raise TypeError


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("eager", task_cls="dispatcher.celery:DispatchedTask", broker="memory://")
    app.conf.task_always_eager = True
    app.set_current()
    yield app
    project_app.set_current()


def test_what_is_raised_to_celery_can_be_read_by_the_worker() -> None:
    for cause in (None, ValueError("no"), Unpicklable()):
        asked = RetryAsked(cause, timedelta(seconds=5), may_retry=True)
        again = pickle.loads(pickle.dumps(asked))  # noqa: S301 -- our own
        assert type(again) is Retry
        assert (str(again), again.when) == (str(asked), 5)


def test_the_cause_is_the_one_that_was_given_or_that_was_being_handled() -> None:
    given = Unpicklable()

    def asks(cause: BaseException | None) -> Never:
        try:
            {}["nothing"]
        except KeyError:
            raise RetryAsked(cause, None, may_retry=True)  # noqa: B904 -- as Celery does

    for cause, expected in ((given, Unpicklable), (None, KeyError)):
        outcome = run(lambda cause=cause: asks(cause))
        assert isinstance(outcome, Failed)
        assert type(outcome.error) is expected


@pytest.mark.django_db(transaction=True, available_apps=APPS)
def test_the_last_attempt_fails_in_celerys_eyes_as_well(app: Celery) -> None:
    failed: list[BaseException] = []

    @app.task(bind=True, max_retries=9)
    def asks(self: Task) -> Any:
        raise self.retry(countdown=5)

    asks.on_failure = lambda error, *_: failed.append(error)
    call = CallQueue.objects.send(asks, retry={"max_attempts": 1})
    assert CallQueue.objects.get(id=call.id).state == State.DISCARDED
    assert [type(error) for error in failed] == [MaxRetriesExceededError]
