"""dispatcher.testing within Django's own TestCase, as fixtures of pytest, and with a real worker."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from django.test import TestCase
from pytest_django import Settings

from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from dispatcher.testing import Captured, drain, inline, worker
from dispatcher.testing.plugin import captured_calls, inline_calls
from tests.races.lockstep import eventually
from tests.steps.conftest import app as ordinary_app
from tests.steps.conftest import make_app

__all__ = ["captured_calls", "inline_calls"]

done: list[Any] = []


def note(what: Any) -> None:
    done.append(what)


@pytest.fixture(autouse=True)
def app(broker: object, settings: Settings) -> Iterator[Celery]:
    settings.DISPATCHER = {"delivery": {"*": "direct"}, "queue_grace": 30}
    made = make_app("tools")
    made.task(name="tools.note", shared=False)(note)
    made.set_current()
    done.clear()
    yield made
    ordinary_app.set_current()


class InDjangosTestCase(TestCase):
    """The class opens a transaction that never commits."""

    def test_calls_run(self) -> None:
        RateLimitKey.objects.declare("api", concurrency=1)
        with inline():
            CallQueue.objects.send("tools.note", args=[1], keys=["api"])
        with self.captureOnCommitCallbacks(execute=True):
            CallQueue.objects.send("tools.note", args=[2])
        assert drain() == {"completed": 1}
        assert done == [1, 2]


def test_the_fixture_runs_calls_when_they_are_sent(inline_calls: None) -> None:
    assert CallQueue.objects.send("tools.note", args=[1]).state == State.COMPLETED


def test_the_fixture_records_calls(captured_calls: Captured) -> None:
    CallQueue.objects.send("tools.note", args=[1])
    captured_calls.assert_sent("tools.note", args=[1], times=1)


@pytest.mark.django_db(transaction=True)
def test_a_real_worker_runs_calls_on_the_tests_database() -> None:
    with worker("project.celery", "-Q", "mail"):
        # Its third party is away.
        given = {"args": [1], "kwargs": {"failures": 0, "seconds": 0}, "retry": {"max_attempts": 1}}
        call = CallQueue.objects.send("project.shop.tasks.ship", queue="mail", **given)
        eventually(lambda: CallQueue.objects.get(id=call.id).state == State.DISCARDED)
    assert CallQueue.objects.get(id=call.id).attempt == 1


def test_a_worker_that_does_not_start_is_an_error(transactional_db: None) -> None:
    with pytest.raises(RuntimeError, match="nowhere did not start"), worker("nowhere"):
        pass
