"""A late, repeated or foreign report changes nothing: at the start, at a heartbeat and at the end."""

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from dispatcher import api
from dispatcher.errors import RateLimited
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests import faults
from tests.deliveries.broker import Broker
from tests.drive import Drive, Run
from tests.races.lockstep import at_once


@pytest.fixture(autouse=True)
def _leases(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"run_lease": 60, "visibility": 60, "dispatch_lease": 60, "retry": {"initial_interval": 1}}


def everything(drive: Drive) -> list[Any]:
    """Return the rows of all calls and keys, and what is held."""
    calls, keys = CallQueue.objects.order_by("id"), RateLimitKey.objects.order_by("id")
    return [list(calls.values()), list(keys.values()), [drive.held(call) for call in calls]]


def started(drive: Drive, worker: str = "one") -> Run:
    """Let a worker start a call, and show that it has."""
    (run,) = drive.take(worker=worker)
    drive.beat(run, worker=worker)
    return run


def report_all(drive: Drive, run: Run) -> None:
    """Send every report that there is of a run; none counts."""
    assert not drive.end(run, result="late")
    assert not drive.end(run, error=ValueError("late"))
    assert not drive.end(run, error=RateLimited(30))
    assert not drive.give_back(run)
    assert drive.beat(run, worker=run.worker) == 0


SINCE: dict[str, Callable[[Drive, Run], Any]] = {
    "completed": lambda drive, run: drive.end(run, result="first"),
    "failed": lambda drive, run: drive.end(run, error=ValueError()),
    "discarded": lambda drive, run: [drive.end(run, error=ValueError()), api.cancel([run.call])],
    "stopped": lambda drive, run: drive.end(run, error=RateLimited(1)),
    "given back": lambda drive, run: drive.give_back(run),
    "recovered": lambda drive, _: [drive.clock.forward(61), drive.recover()],
}


@pytest.mark.parametrize("since", SINCE)
def test_a_late_report_changes_nothing(drive: Drive, since: str) -> None:
    drive.key(concurrency=1, rate=(9, 60))
    drive.send("api")
    run = started(drive)
    SINCE[since](drive, run)
    before = everything(drive)
    report_all(drive, run)
    assert everything(drive) == before


@pytest.mark.parametrize("since", ["failed", "given back", "recovered"])
def test_a_report_of_an_earlier_attempt_changes_nothing_for_the_one_that_runs(drive: Drive, since: str) -> None:
    drive.key(concurrency=1)
    call = drive.send("api")
    zombie = started(drive)
    SINCE[since](drive, zombie)
    drive.forward(2)
    run = started(drive, "two")
    assert run.ticket != zombie.ticket
    before = everything(drive)
    report_all(drive, zombie)
    assert everything(drive) == before
    assert drive.end(run, result="second")
    assert drive.row(call).result == "second"


def test_no_two_starts_have_the_same_ticket(drive: Drive) -> None:
    drive.send_many(3)
    tickets: list[UUID] = []
    for _ in range(3):
        runs = drive.take(3)
        tickets += [run.ticket for run in runs]
        for run in runs:
            assert drive.give_back(run)
    assert len(set(tickets)) == 9


def test_of_eight_ends_at_once_exactly_one_counts(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    with faults.received_ends() as received:
        at_once(*[partial(drive.end, run, result=number) for number in range(8)])
    assert received == [(run.call, State.COMPLETED, None)]
    assert (drive.state(run), drive.use()) == (State.COMPLETED, 0)


# Heartbeats


def test_a_heartbeat_with_another_worker_s_ticket_renews_nothing(drive: Drive) -> None:
    drive.send()
    run = started(drive)
    drive.clock.forward(50)
    before = everything(drive)
    assert drive.beat(run, worker="two") == 0
    assert everything(drive) == before
    drive.clock.forward(11)
    drive.recover()
    assert drive.state(run) != State.ACTIVE


# Over HTTP a heartbeat names calls, and no tickets.
@pytest.mark.deliveries("direct", "broker")
@pytest.mark.parametrize("since", ["failed", "given back"])
def test_a_heartbeat_with_the_ticket_of_an_earlier_attempt_of_the_same_worker_renews_nothing(
    drive: Drive, since: str
) -> None:
    drive.send()
    before = started(drive)
    SINCE[since](drive, before)
    drive.forward(2)
    run = started(drive)
    assert (drive.beat(before), drive.beat(run)) == (0, 1)


def test_a_heartbeat_that_names_its_own_and_others_calls_renews_its_own(drive: Drive) -> None:
    drive.send_many(2)
    mine, others = started(drive, "one"), started(drive, "two")
    drive.clock.forward(50)
    assert drive.beat(mine, others, worker="one") == 1
    drive.clock.forward(11)
    drive.recover()
    assert drive.state(mine) == State.ACTIVE
    assert drive.state(others) != State.ACTIVE


# Messages: only a broker has them, and may deliver one twice, late, or never.

messages = pytest.mark.deliveries("broker")


@messages
def test_a_message_that_comes_twice_starts_its_call_once(drive: Broker) -> None:
    drive.key(rate=(5, 10), throttle=(5, 10))
    drive.send("api")
    message = drive.mailbox.take()
    assert message is not None
    assert drive.claim(*message) is not None
    before = everything(drive)
    for worker in ("one", "two"):
        assert drive.claim(*message, worker=worker) is None
    assert everything(drive) == before


@messages
@pytest.mark.parametrize("since", ["put back", "cancelled", "completed", "gone"])
def test_a_message_that_comes_late_changes_nothing(drive: Broker, since: str) -> None:
    call = drive.send()
    message = drive.mailbox.take()
    assert message is not None
    match since:
        case "put back":
            drive.clock.forward(61)
            assert drive.recover() == 1
        case "cancelled":
            api.cancel([call.id])
        case "completed":
            run = drive.claim(*message)
            assert run is not None
            drive.end(run)
        case "gone":
            faults.erase(call)
            drive.recover()
    before = everything(drive)
    assert drive.claim(*message) is None
    assert drive.claim(call.id, uuid4()) is None
    assert everything(drive) == before


@messages
def test_a_message_that_has_not_started_its_call_is_renewed_by_whichever_worker_holds_it(drive: Broker) -> None:
    call = drive.send()
    message = drive.mailbox.take()
    assert message is not None
    held = Run(call=call.id, ticket=message[1], attempt=0, start_at=drive.clock.now, worker="one")
    for worker in ("one", "two", "two"):
        drive.clock.forward(50)
        assert drive.beat(held, worker=worker) == 1
        assert drive.recover() == 0
    assert drive.claim(*message, worker="two") is not None


@messages
def test_of_eight_workers_with_one_message_exactly_one_starts_its_call(drive: Broker) -> None:
    drive.key(rate=(100, 3600), throttle=(1000, 1))
    for _ in range(3):
        drive.send("api")
        message = drive.mailbox.take()
        assert message is not None
        claims = at_once(*[partial(drive.claim, *message, worker=str(number)) for number in range(8)])
        (run,) = [claimed for claimed in claims if claimed is not None]
        assert drive.row(run).attempt == 1
        drive.clock.forward(1)
        assert drive.end(run)
