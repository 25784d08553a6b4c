"""Presence: a worker's heartbeat goes on, whatever comes between."""

import sys
from collections.abc import Iterator
from threading import Event, get_ident
from time import monotonic
from types import CodeType, FrameType, SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from celery.worker import state as worker_state
from django.db import OperationalError

from dispatcher import engine
from dispatcher.celery import DispatchedRequest, cancel_revoked, heartbeat
from dispatcher.celery.heartbeat import Presence, reserved_calls
from dispatcher.engine import workers
from dispatcher.lifecycle import claim
from dispatcher.lifecycle.run import Returned
from dispatcher.states import State
from tests.builders import committed, seen, states, ticket_of
from tests.races.lockstep import eventually, holding
from tests.steps.conftest import Broker
from tests.steps.sample_tasks import do, sent

LONG_S = 10.0


class Reserved:
    """A message that the worker holds."""

    def __init__(self) -> None:
        self.id, self.ticket = str(uuid4()), uuid4()


@pytest.fixture(autouse=True)
def _no_messages() -> Iterator[None]:
    identity = heartbeat.Identity.worker
    yield
    worker_state.reserved_requests.clear()
    heartbeat.Identity.worker = identity  # put back after the test


def worker() -> Any:
    """Return what a step receives of its worker."""
    return SimpleNamespace(
        hostname="celery@here",
        concurrency=1,
        pool_cls=Reserved,
        pool=SimpleNamespace(num_processes=1, stop=lambda: None),
        app=SimpleNamespace(
            amqp=SimpleNamespace(queues=SimpleNamespace(consume_from=["celery"])), tasks={"shop.charge": None}
        ),
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

    monkeypatch.setattr(workers, "record_heartbeat", beat)
    monkeypatch.setattr(workers, "release_all", lambda _: 0)
    one = worker()
    step = Presence(one)
    step.start(one)
    try:
        assert is_well.wait(LONG_S)
    finally:
        step.stop(one)
    said = [each for each in caplog.records if "could not send its heartbeat" in each.getMessage()]
    assert len(said) == 2
    for record in said:
        # What is known has its remedy, and what is not its traceback.
        assert bool(record.exc_info) != ("Start it" in record.getMessage())


@pytest.fixture
def running_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a worker whose presence has started, and that step."""
    one = worker()
    monkeypatch.setattr(workers, "record_heartbeat", lambda *_: None)
    step = Presence(one)
    step.start(one)
    yield step
    step.stop(one)


@committed
def test_the_loss_of_a_process_is_recorded_beside_the_workers_loop(running_worker: Any, broker: Broker) -> None:
    call = sent()
    request = DispatchedRequest(broker.take()[0], app=broker.app, task=do)
    assert isinstance(claim.claim(call.id, ticket_of(call), claim_id=request.claim_id), claim.Claimed)
    with holding("LOCK TABLE dispatcher_slot IN ACCESS EXCLUSIVE MODE"):
        # The loop goes on, though the database does not answer.
        request.on_timeout(soft=False, timeout=5)
        assert states([call]) == [State.ACTIVE]
    eventually(lambda: states([call]) == [State.RETRYABLE])
    assert seen(call).error["type"] == "TimeLimitExceeded"


@committed
def test_a_revoke_is_recorded_beside_the_workers_loop(running_worker: Any, broker: Broker) -> None:
    call = sent()
    request = DispatchedRequest(broker.take()[0], app=broker.app, task=do)
    with holding("LOCK TABLE dispatcher_slot IN ACCESS EXCLUSIVE MODE"):
        cancel_revoked(request._context)  # noqa: SLF001 -- what Celery sends
    eventually(lambda: states([call]) == [State.CANCELLED])


@committed
def test_what_is_done_beside_the_loop_is_tried_again_until_the_database_is_there(running_worker: Any) -> None:
    tries, is_done = [], Event()

    def work() -> None:
        tries.append(get_ident())
        if len(tries) < 3:
            raise OperationalError
        is_done.set()

    heartbeat.in_background("do it", work)
    assert is_done.wait(LONG_S)
    assert len(tries) == 3
    assert get_ident() not in tries


def test_what_fails_beside_the_loop_is_named_in_the_log_and_the_rest_is_done(
    running_worker: Any, caplog: pytest.LogCaptureFixture
) -> None:
    is_done = Event()
    heartbeat.in_background("divide by nothing", lambda: 1 / 0)
    heartbeat.in_background("go on", is_done.set)
    assert is_done.wait(LONG_S)
    assert "worker celery@here could not divide by nothing" in caplog.messages


def test_a_silent_database_does_not_stop_a_shutdown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Event()
    monkeypatch.setattr(heartbeat, "_LONGEST_WAIT_S", 0.05)
    monkeypatch.setattr(workers, "record_heartbeat", lambda *_: None)
    monkeypatch.setattr(workers, "stop_accepting", lambda *_: answers.wait(LONG_S))
    monkeypatch.setattr(workers, "release_all", lambda _: answers.wait(LONG_S))
    one = worker()
    step = Presence(one)
    step.start(one)
    began = monotonic()
    step.close(one)
    step.stop(one)
    took = monotonic() - began
    answers.set()
    assert took < LONG_S / 2
    assert [message.partition(", and ")[2] for message in caplog.messages] == [
        "does not wait until it has put back what it had fetched",
        "does not wait until it has put back what it had to give up",
    ]


@committed
def test_a_worker_that_ends_keeps_what_its_own_process_still_runs() -> None:
    call = sent()
    worker_id = uuid4()

    def shut_down() -> str:
        assert workers.release_all(worker_id) == 0
        return "done"

    assert engine.execute(call.id, ticket_of(call), shut_down, worker=worker_id) == Returned(result="done")
    assert (seen(call).state, seen(call).attempt) == (State.COMPLETED, 1)


def test_messages_that_come_and_go_while_a_worker_counts_them_do_no_harm() -> None:
    kept = [Reserved() for _ in range(3)]
    worker_state.reserved_requests.update(kept)
    counting: set[CodeType] = {reserved_calls.__code__, type(worker_state.reserved_requests).__iter__.__code__}

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
        found = reserved_calls()
    finally:
        sys.settrace(before)
    assert len(kept) > 3
    assert {(str(call), ticket) for call, ticket in found} >= {(each.id, each.ticket) for each in kept[:3]}
