"""What a worker's processes and its main process let each other know by shared memory."""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from math import inf
from threading import Event, Thread
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.ending import Ending
from dispatcher.lifecycle.finish import Ended
from dispatcher.states import Reason, State
from dispatcher.worker.shared import Running, Shared, tickets_of

DEADLINE = 10.0
JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda each: st.lists(each, max_size=3))
ENDINGS = st.builds(
    Ending,
    state=st.sampled_from([State.COMPLETED, State.RETRYABLE, State.DISCARDED]),
    reason=st.none() | st.sampled_from(Reason),
    crashes=st.integers(0, 3),
    result=JSON,
    error=st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3),
    wait=st.none() | st.timedeltas(timedelta(0), timedelta(days=9)),
)


@pytest.fixture
def shared() -> Iterator[Shared]:
    made = Shared()
    yield made
    made.close()


def ended(ending: Ending) -> Ended:
    ticket = uuid4()
    return Ended(call_id=uuid4(), ticket=ticket, claim_id=ticket, ending=ending)


def running(**fields: object) -> Running:
    given = {"task": "noop", "attempt": 1, "began": 1.0, "soft": 2.0, "hard": inf} | fields
    return Running(call=uuid4(), ticket=uuid4(), **given)


def in_child(work: Callable[[], object]) -> int:
    """Do something in a process that is forked and ends at once; return its status."""
    if not (pid := os.fork()):
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_place_that_is_cleared_has_nothing(shared: Shared) -> None:
    place = shared.place(3)
    place.enter(uuid4())
    place.run(running())
    place.hold([(uuid4(), uuid4())])
    place.add(ended(Ending(state=State.COMPLETED)))
    place.condemn()
    place.clear()
    assert (place.process, place.pid, place.running, place.held, place.ends) == (None, 0, None, [], [])
    assert (place.is_condemned, place.trips) == (False, (0, False))


def test_places_know_nothing_of_each_other(shared: Shared) -> None:
    first, second = shared.place(0), shared.place(1)
    one, other = running(), running(task="x" * 200)
    for place, each in ((first, one), (second, other)):
        place.enter(each.ticket)
        place.hold([(each.call, each.ticket)] * 100)
        for _ in range(100):
            place.add(ended(Ending(state=State.COMPLETED, result="y" * 900)))
        place.run(each)
    assert (first.process, second.process) == (one.ticket, other.ticket)
    assert first.running == one
    assert second.running is not None
    assert (second.running.call, second.running.task) == (other.call, "x" * 99)
    assert {*first.held, *second.held} == {(one.call, one.ticket), (other.call, other.ticket)}


@given(given=st.lists(ENDINGS, max_size=5))
def test_ends_are_read_as_they_were_written_and_only_those_that_are_kept(given: list[Ending]) -> None:
    shared = Shared()
    place = shared.place(0)
    ends = [ended(each) for each in given]
    for each in ends:
        place.add(each)
    assert place.ends == ends
    place.keep(ends[1:])
    assert place.ends == ends[1:]
    shared.close()


def test_an_end_that_finds_no_room_leaves_the_others(shared: Shared) -> None:
    place = shared.place(0)
    small = [ended(Ending(state=State.COMPLETED, result=n)) for n in range(2)]
    place.add(small[0])
    place.add(ended(Ending(state=State.COMPLETED, result="z" * 20_000)))
    place.add(small[1])
    assert place.ends == small


def test_what_a_process_has_is_seen_after_it_has_died(shared: Shared) -> None:
    place, call, end = shared.place(0), running(), ended(Ending(state=State.COMPLETED, result=1))

    def run_and_die() -> None:
        place.enter(call.ticket)
        place.run(call)
        place.hold([(call.call, call.ticket)])
        place.add(end)
        os._exit(0)

    assert in_child(run_and_die) == 0
    assert (place.process, place.running, place.ends) == (call.ticket, call, [end])
    assert place.held == [(call.call, call.ticket)]


def test_a_record_is_read_whole_while_it_is_written(shared: Shared) -> None:
    place, is_over = shared.place(0), Event()
    calls = [running(task=str(n), attempt=n, began=n, soft=n, hard=n) for n in range(7)]
    place.enter(calls[0].ticket)

    def write() -> None:
        while not is_over.is_set():
            for call in calls:
                place.begin_trip()
                place.run(call)
                place.end_trip()
                place.run(None)

    writer = Thread(target=write)
    writer.start()
    try:
        trips = 0
        for _ in range(3_000):
            assert place.running in [*calls, None]
            now, _ = place.trips
            assert now >= trips
            assert place.process == calls[0].ticket
            trips = now
    finally:
        is_over.set()
        writer.join()


def test_queues_that_change_are_seen_by_processes_that_were_forked(shared: Shared) -> None:
    assert shared.queues == {}
    shared.write_queues({"mail": 1})
    assert in_child(lambda: shared.queues == {"mail": 1}) == 0
    assert shared.queues == {"mail": 1}
    assert in_child(lambda: shared.write_queues({"mail": 2, "post": 1}) or True) == 0
    assert shared.queues == {"mail": 2, "post": 1}


def test_queues_whose_names_are_too_long_are_refused(shared: Shared) -> None:
    with pytest.raises(ValueError, match="300 direct queues are too long"):
        shared.write_queues({f"{n:0250}": 1 for n in range(300)})
    assert shared.queues == {}


def test_as_many_loops_leave_as_are_asked_to(shared: Shared) -> None:
    assert shared.must_leave() is False
    shared.ask_to_leave(2)
    assert [shared.must_leave() for _ in range(4)] == [True, True, False, False]
    shared.ask_to_leave(2)
    shared.take_back()
    assert shared.must_leave() is False


def test_all_loops_leave_when_the_main_process_closes_or_ends(shared: Shared) -> None:
    def follow() -> bool:
        shared.enter_child()
        return shared.must_leave() is None

    assert in_child(follow) == 1
    shared.close()
    assert in_child(follow) == 0
    assert [shared.must_leave() for _ in range(3)] == [None] * 3


def test_an_answer_that_was_lost_is_reported_once_when_the_trip_has_ended(shared: Shared) -> None:
    place = shared.place(0)
    place.enter(uuid4())
    place.end_trip(is_lost=True)
    place.begin_trip()
    assert not place.take_lost()
    place.end_trip()
    assert place.take_lost()
    assert not place.take_lost()


def test_what_loops_have_is_known_once_the_trip_under_way_has_ended(shared: Shared) -> None:
    places = [shared.place(index) for index in range(2)]
    for place in places:
        place.enter(uuid4())
    held, end = (uuid4(), uuid4()), ended(Ending(state=State.COMPLETED))
    places[0].add(end)
    places[1].begin_trip()
    assert tickets_of(places, patience_s=0.01) is None

    def start() -> None:
        places[1].hold([held])
        places[1].end_trip()

    started = Thread(target=start)
    started.start()
    assert tickets_of(places, patience_s=DEADLINE) == {held[1], end.ticket}
    started.join()
