"""Concurrency: the cost of the calls in flight never exceeds it, and each end passes its room on."""

from dispatcher.states import State
from tests.drive import Drive


def test_no_more_calls_start_than_the_key_allows(drive: Drive) -> None:
    drive.key(concurrency=2)
    calls = drive.send_many(5, "api")
    runs = drive.take(5)
    assert [run.call for run in runs] == [call.id for call in calls[:2]]
    assert drive.take(5) == []
    assert drive.use() == 2


def test_each_end_lets_the_next_call_in_until_the_backlog_is_done(drive: Drive) -> None:
    drive.key(concurrency=2)
    calls = drive.send_many(7, "api")
    assert drive.drain(room=3) == [call.id for call in calls]
    assert drive.states(calls) == [State.COMPLETED] * 7
    assert drive.use() == 0
