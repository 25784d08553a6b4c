"""Events of calls: whether loops write them, as Celery's dispatcher would send those of tasks, and what is in them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.app.trace import TraceInfo
from celery.events import EventDispatcher
from celery.exceptions import Retry

from dispatcher.worker.events import EventPipe, are_wanted


@pytest.fixture
def dispatcher() -> Callable[..., EventDispatcher]:
    app = Celery("events", broker="memory://", set_as_current=False)
    return lambda **options: app.events.Dispatcher(app.connection_for_write(), **options)


def test_a_worker_without_a_dispatcher_of_events_wants_none() -> None:
    assert not are_wanted(None)


@pytest.mark.parametrize("groups", [None, ["worker"], ["worker", "task"]])
def test_a_dispatcher_of_events_that_is_disabled_wants_none(
    dispatcher: Callable[..., EventDispatcher], groups: list[str] | None
) -> None:
    assert not are_wanted(dispatcher(enabled=False, groups=groups))


def test_a_dispatcher_of_events_without_groups_wants_those_of_tasks(
    dispatcher: Callable[..., EventDispatcher],
) -> None:
    assert are_wanted(dispatcher(enabled=True))


def test_one_of_the_workers_own_events_wants_those_of_tasks_while_a_monitor_asks(
    dispatcher: Callable[..., EventDispatcher],
) -> None:
    made = dispatcher(enabled=True, groups=["worker"])
    assert not are_wanted(made)
    made.groups.add("task")
    assert are_wanted(made)
    made.groups.discard("task")
    assert not are_wanted(made)


def test_the_event_of_a_retry_names_its_cause() -> None:
    pipe: Any = EventPipe()
    task = SimpleNamespace(send_events=True)
    info = TraceInfo("RETRY", Retry("again", ValueError("cause"), 2))
    pipe.ended(task, {"id": "one"}, info, None, 0.1)
    pipe.end()
    sent = Mock()
    pipe.pass_on(lambda: sent)
    ((kind,), event), *others = sent.send.call_args_list
    assert not others
    assert (kind, event["uuid"], event["exception"]) == ("task-retried", "one", "ValueError('cause')")
