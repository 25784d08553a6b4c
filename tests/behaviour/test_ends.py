"""How an attempt ends: what the row keeps of it, and that its slots are free."""

from datetime import date, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from dispatcher.models import CallQueue
from dispatcher.states import State
from tests import faults
from tests.drive import Drive, Run

pytestmark = pytest.mark.pooler


class CardDeclined(ValueError):
    """A kind of error that the tests' tasks raise."""


class Unspeakable:
    """What can not even be written for people."""

    def __repr__(self) -> str:
        raise RuntimeError


def started(drive: Drive, *keys: str, **fields: Any) -> Run:
    drive.send(*keys, **fields)
    (run,) = drive.take()
    return run


# Success


def test_a_result_is_kept_and_the_slots_are_given_back(drive: Drive) -> None:
    drive.key(concurrency=2)
    drive.key("tenant")
    run, other = started(drive, "api", "tenant"), started(drive, "api")
    drive.clock.forward(5)
    assert drive.end(run, result={"charged": [1, None, "ä"]})
    row = drive.row(run)
    assert (row.state, row.result, row.error, row.errors) == ("completed", {"charged": [1, None, "ä"]}, None, [])
    assert (row.attempt, row.ticket, row.started_at, row.finished_at) == (1, None, run.start_at, drive.clock.now)
    assert (drive.held(run), drive.held(other)) == ({}, {"api": 1})


RESULTS: list[tuple[Any, Any]] = [
    (None, None),
    (0, 0),
    ("", ""),
    ("😀 \\ud83d C:\\users\\udo \\u0000", "😀 \\ud83d C:\\users\\udo \\u0000"),
    ({1: "one"}, {"1": "one"}),
    ((1, 2), [1, 2]),
]


def test_a_result_is_kept_as_json(drive: Drive) -> None:
    for result, kept in RESULTS:
        run = started(drive)
        assert drive.end(run, result=result)
        assert drive.row(run).result == kept


# What a worker reports over HTTP is JSON.
@pytest.mark.deliveries("direct", "broker")
def test_a_result_that_is_not_json_is_kept_in_words(drive: Drive) -> None:
    for result, kept in (
        (date(2030, 1, 1), "2030-01-01"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=1), str(UUID(int=1))),
        (timedelta(seconds=90), "P0DT00H01M30S"),
        ({1, 2}, "{1, 2}"),
        (b"raw", "b'raw'"),
        ([float("inf")], "[inf]"),
    ):
        run = started(drive)
        assert drive.end(run, result=result)
        assert drive.row(run).result == kept


# The same.
@pytest.mark.deliveries("direct", "broker")
@pytest.mark.parametrize(
    "result",
    ["a\0b", {"a\0": 1}, "\ud800", float("nan"), object(), Unspeakable()],
    ids=lambda each: type(each).__name__,
)
def test_a_result_that_can_not_be_kept_does_not_cost_the_success(drive: Drive, result: Any) -> None:
    run = started(drive)
    assert drive.end(run, result=result)
    row = drive.row(run)
    assert (row.state, type(row.result)) == ("completed", str)


def test_a_result_over_the_limit_is_not_kept(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"max_payload_bytes": 100}
    run = started(drive)
    assert drive.end(run, result="a" * 200)
    assert drive.row(run).result == "202 bytes, not kept"


def test_a_success_forgets_the_last_error_and_keeps_the_history(drive: Drive) -> None:
    drive.end(started(drive, retry={"initial_interval": 1}), error=CardDeclined())
    drive.forward(1)
    (again,) = drive.take()
    assert drive.end(again)
    assert (drive.row(again).error, len(drive.row(again).errors)) == (None, 1)


# Failure


def test_a_failed_attempt_waits_for_the_next_and_its_error_is_kept(drive: Drive) -> None:
    drive.key(concurrency=1)
    run = started(drive, "api", retry={"initial_interval": 10, "jitter": False})
    drive.clock.forward(5)
    assert drive.end(run, error=CardDeclined("no money"))
    row = drive.row(run)
    assert (row.state, row.finished_at, row.ticket, drive.use()) == ("retryable", None, None, 0)
    assert (row.scheduled_at - drive.clock.now).total_seconds() == 10
    assert (row.error["type"], row.error["message"], row.error["attempt"]) == ("CardDeclined", "no money", 1)
    assert row.error["occurred_at"].startswith("2030-01-01T12:00:05")
    assert (row.errors, row.error_count) == ([row.error], 1)


def test_a_call_that_is_tried_again_without_a_wait_goes_on_at_once(drive: Drive) -> None:
    run = started(drive, retry={"max_attempts": 2, "initial_interval": 0})
    behind = drive.send()
    assert drive.end(run, error=CardDeclined())
    row = drive.row(run)
    assert (row.state, row.error["type"]) == (
        "dispatched" if drive.delivery == "broker" else "available",
        "CardDeclined",
    )
    assert {each.call: each.attempt for each in drive.take(2)} == {run.call: 2, behind.id: 1}


def test_a_call_is_discarded_after_its_last_attempt_with_all_its_errors(drive: Drive) -> None:
    call = drive.send(retry={"max_attempts": 3, "initial_interval": 1, "backoff_coefficient": 10, "jitter": False})
    for wait in (1, 10, 100):
        (run,) = drive.take()
        drive.end(run, error=CardDeclined(f"before {wait}"))
        drive.forward(wait - 0.1)
        assert drive.take() == []
        drive.forward(0.1)
    row = drive.row(call)
    assert (row.state, row.reason, row.attempt, row.ticket) == ("discarded", "failed", 3, None)
    assert row.finished_at is not None
    assert [error["message"] for error in row.errors] == ["before 1", "before 10", "before 100"]
    assert [error["attempt"] for error in row.errors] == [1, 2, 3]
    assert drive.take() == []


def test_the_setting_counts_the_attempts_of_calls_without_a_policy(drive: Drive, settings: Any) -> None:
    for given, attempts in (({}, 3), ({"retry": {"max_attempts": 2, "initial_interval": 7}}, 2)):
        settings.DISPATCHER = given
        call = drive.send()
        for _ in range(attempts):
            assert drive.state(call) != State.DISCARDED
            (run,) = drive.take()
            drive.end(run, error=CardDeclined())
            drive.forward(60)
        assert drive.state(call) == State.DISCARDED


@pytest.mark.parametrize(
    ("names", "error", "state"),
    [
        (["CardDeclined"], CardDeclined(), State.DISCARDED),
        (["ValueError"], CardDeclined(), State.DISCARDED),
        (["KeyError"], CardDeclined(), State.RETRYABLE),
        (["CardDeclined"], ValueError(), State.RETRYABLE),
    ],
)
def test_an_error_that_is_not_to_be_tried_again_discards_the_call(
    drive: Drive, names: list[str], error: Exception, state: State
) -> None:
    run = started(drive, retry={"non_retryable_errors": names})
    assert drive.end(run, error=error)
    assert drive.state(run) == state


def test_a_call_that_failed_goes_on_where_it_stood_in_its_lane(drive: Drive) -> None:
    drive.key(concurrency=1)
    first, second, third = drive.send_many(3, "api", retry={"initial_interval": 1})
    (run,) = drive.take()
    drive.end(run, error=CardDeclined())
    (run,) = drive.take()
    assert run.call == second.id
    drive.forward(1)
    assert drive.end(run)
    assert drive.drain() == [first.id, third.id]


def test_the_first_five_and_the_last_twenty_errors_are_kept_and_all_are_counted(drive: Drive) -> None:
    call = drive.send(retry={"max_attempts": 1_000_000, "initial_interval": 1, "max_interval": 1})
    for number in range(1, 28):
        (run,) = drive.take()
        drive.end(run, error=CardDeclined(f"number {number}"))
        row = drive.row(call)
        first = [*range(1, min(number, 5) + 1)]
        assert [error["attempt"] for error in row.errors] == [*first, *range(max(6, number - 19), number + 1)]
        assert row.error_count == number
        drive.clock.forward(1)
        drive.tick()
    assert row.error == row.errors[-1]


def test_a_call_that_is_retried_for_ever_can_still_start_and_end(drive: Drive) -> None:
    call = drive.send(retry={"max_attempts": 1_000_000, "initial_interval": 1, "max_interval": 1})
    CallQueue.objects.filter(id=call.id).update(attempt=32_766, error_count=32_766)
    for attempt in (32_767, 32_768):
        (run,) = drive.take()
        assert run.attempt == attempt
        assert drive.end(run, error=CardDeclined())
        drive.forward(1)
    (run,) = drive.take()
    assert drive.end(run)
    assert drive.row(call).attempt == 32_769


# Over HTTP, reports that hold what can not be stored are refused.
@pytest.mark.deliveries("direct", "broker")
@pytest.mark.parametrize("text", ["a\0b", "\ud800", "é" * 10_000], ids=["nul", "surrogate", "long"])
def test_any_message_of_an_error_can_be_kept(drive: Drive, text: str) -> None:
    run = started(drive)
    assert drive.end(run, error=ValueError(text))
    assert 0 < len(drive.row(run).error["message"]) <= 4_000


# What a worker reports over HTTP is text.
@pytest.mark.deliveries("direct", "broker")
def test_an_error_without_words_is_kept_by_its_type(drive: Drive) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    run = started(drive)
    assert drive.end(run, error=Mute())
    assert drive.row(run).error["type"] == "Mute"


# Who listens


def test_an_end_is_sent_to_the_receivers_of_its_signal_and_one_that_fails_harms_nothing(drive: Drive) -> None:
    good, bad = started(drive), started(drive, retry={"max_attempts": 1})
    with faults.received_ends(fails=True) as received:
        drive.end(good)
        drive.end(bad, error=CardDeclined())
    assert received == [(good.call, State.COMPLETED, None), (bad.call, State.DISCARDED, "CardDeclined")]
    assert drive.states([good, bad]) == [State.COMPLETED, State.DISCARDED]
