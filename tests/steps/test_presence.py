"""Presence: a worker's heartbeat goes on, whatever comes between."""

import sys
from collections.abc import Iterator
from threading import Event
from types import CodeType, FrameType, SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery.worker import state as worker_state
from django.db import OperationalError

from dispatcher import presence, workers
from dispatcher.presence import Presence, held

LONG_S = 10.0


class Reserved:
    """A message that the worker holds."""

    def __init__(self) -> None:
        self.id, self.ticket = str(uuid4()), uuid4()


@pytest.fixture(autouse=True)
def _no_messages() -> Iterator[None]:
    identity = presence.worker_id()
    yield
    worker_state.reserved_requests.clear()
    presence._Identity.worker = identity  # noqa: SLF001 -- put back after the test


def worker() -> Any:
    """Return what a step is told of its worker."""
    return SimpleNamespace(
        hostname="celery@here",
        concurrency=1,
        pool_cls=Reserved,
        pool=SimpleNamespace(num_processes=1, stop=lambda: None),
        app=SimpleNamespace(amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=["celery"]))),
    )


@pytest.mark.parametrize("fault", [OperationalError("gone"), RuntimeError("the broker"), KeyError("x")], ids=repr)
def test_the_heartbeat_outlives_whatever_a_beat_raises(
    settings: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    settings.DISPATCHER = {"heartbeat": 0.03}
    beats, is_well = [], Event()

    def beat(*_: object) -> None:
        beats.append(1)
        if len(beats) < 3:
            raise fault
        is_well.set()

    monkeypatch.setattr(workers, "beat", beat)
    monkeypatch.setattr(workers, "part", lambda _: 0)
    one = worker()
    step = Presence(one)
    step.start(one)
    try:
        assert is_well.wait(LONG_S)
    finally:
        step.stop(one)
    assert caplog.messages[:2] == ["worker celery@here could not send its heartbeat"] * 2
    assert all(record.exc_info for record in caplog.records[:2])


def test_messages_that_come_and_go_while_a_worker_counts_them_do_no_harm() -> None:
    kept = [Reserved() for _ in range(3)]
    worker_state.reserved_requests.update(kept)
    counting: set[CodeType] = {held.__code__, type(worker_state.reserved_requests).__iter__.__code__}

    def between(frame: FrameType, event: str, _: object) -> Any:
        """Let the consumer's thread have its turn before every line."""
        if frame.f_code not in counting:
            return None
        if event == "line":
            kept.append(Reserved())
            worker_state.reserved_requests.add(kept[-1])
        return between

    before = sys.gettrace()
    sys.settrace(between)
    try:
        found = held()
    finally:
        sys.settrace(before)
    assert len(kept) > 3
    assert {(str(call), ticket) for call, ticket in found} >= {(each.id, each.ticket) for each in kept[:3]}
