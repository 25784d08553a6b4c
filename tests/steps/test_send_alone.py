"""Send, the way of a lone call: it goes in the statement that writes it, unless something stands in its way."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from dispatcher import api, sql
from dispatcher.models import CallQueue, Lane
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import committed, key, seen, slots_of, waiting
from tests.steps.conftest import Broker
from tests.steps.send_variants import SendVariant, alone, every_send_variant

pytestmark = [committed, pytest.mark.pooler, pytest.mark.django]

AHEAD = timedelta(hours=1)


def _in_the_way() -> list[Any]:
    def pause() -> None:
        key("api", concurrency=9)
        api.pause("api")

    def block() -> None:
        key("api", concurrency=9)
        api.block("api", AHEAD)

    def override() -> None:
        key("api", concurrency=9)
        api.override("api", until=timezone.now() + AHEAD, concurrency=0)

    def fill() -> None:
        key("api", concurrency=2)
        CallQueue.objects.send_many([Call(task="t", keys=["api"])] * 2)

    def fill_the_window() -> None:
        key("api", rate=(2, "PT1H"))
        CallQueue.objects.send_many([Call(task="t", keys=["api"])] * 2)

    def stop() -> None:
        key("api", concurrency=0)

    def full_queue() -> None:
        key("api")
        key("queue:celery", concurrency=0)

    def dear_call_ahead() -> None:
        key("api", concurrency=3)
        CallQueue.objects.send_many([Call(task="t", keys={"api": cost}) for cost in (2, 2)])

    def other_lane_has_its_turn() -> None:
        key("api", concurrency=4)
        key("other")
        CallQueue.objects.send("t", keys={"api": 2})
        CallQueue.objects.send("t", keys={"api": 3, "other": 1})
        CallQueue.objects.send("t", keys=["api"])

    return [
        pause,
        block,
        override,
        fill,
        fill_the_window,
        stop,
        full_queue,
        dear_call_ahead,
        other_lane_has_its_turn,
    ]


@every_send_variant
@pytest.mark.parametrize("prepare", _in_the_way(), ids=lambda prepare: prepare.__name__)
def test_a_call_waits_where_something_stands_in_its_way(
    send: SendVariant, prepare: Callable[[], None], broker: Broker
) -> None:
    prepare()
    # The second one finds its lane, and so takes the short way where there is one.
    api.cancel([send(task="t", keys=["api"]).id])
    broker.take()
    call = seen(send(task="t", keys=["api"]))
    assert (call.state, call.ticket) == (State.AVAILABLE, None)
    assert not slots_of(call)
    assert str(call.id) not in [message.headers["id"] for message in broker.take()]


@every_send_variant
def test_a_call_does_not_pass_those_that_wait_in_its_lane(send: SendVariant) -> None:
    key("api", concurrency=1)
    first = waiting("api")
    second = send(task="noop", keys=["api"])
    assert second.lane_id == first.lane_id
    assert (seen(first).state, seen(second).state) == (State.DISPATCHED, State.AVAILABLE)


def test_a_call_does_not_pass_a_higher_priority_that_is_awake() -> None:
    key("api", concurrency=1)
    higher = waiting("api", priority=5)
    Lane.objects.filter(id=higher.lane_id).update(is_awake=True)
    assert seen(alone(task="t", keys=["api"], queue="celery")).state == State.AVAILABLE


@every_send_variant
def test_a_throttled_call_goes_at_once_if_its_start_is_near(send: SendVariant) -> None:
    key("api", throttle=(1, "PT1H"))
    assert seen(send(task="t", keys=["api"])).state == State.DISPATCHED
    assert seen(send(task="t", keys=["api"])).state == State.AVAILABLE


def test_a_sender_that_is_not_prepared_for_prepared_statements_sends_too(settings: Any) -> None:
    settings.DISPATCHER = {"prepared_statements": False, "pipeline": False}
    assert seen(alone(task="t")).state == State.DISPATCHED
    assert connection.in_atomic_block is False


@pytest.mark.parametrize(
    ("setting", "is_behind_a_pooler", "prepares"),
    [(None, False, True), (None, True, False), (True, True, True), (False, False, False)],
)
def test_statements_are_prepared_unless_the_setting_or_a_pooler_says_otherwise(
    settings: Any, monkeypatch: pytest.MonkeyPatch, *, setting: bool | None, is_behind_a_pooler: bool, prepares: bool
) -> None:
    settings.DISPATCHER = {"prepared_statements": setting}
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", is_behind_a_pooler)
    connection.ensure_connection()
    monkeypatch.setattr(connection.connection, "prepare_threshold", None)
    sql._cursors.pop(connection.connection, None)  # noqa: SLF001 -- as on a new connection
    # Nothing is sent: behind a pooler it would not be understood.
    sql._cursor(sql.connection(), "read_clock", SimpleNamespace)  # noqa: SLF001
    assert (connection.connection.prepare_threshold is not None) == prepares
