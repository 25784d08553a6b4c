"""Queues: calls go to workers that are there, and no more at once than are allowed on their way to them."""

from typing import Any

import pytest

from dispatcher.models import CallQueue, Queue
from dispatcher.states import State
from tests.deliveries.broker import Broker
from tests.drive import Drive, ids

of_celery = pytest.mark.deliveries("direct", "broker")  # Workers over HTTP are known by their fetches alone.
of_the_broker = pytest.mark.deliveries("broker")  # A call of the others is never on its way: taking starts it.


@pytest.fixture(autouse=True)
def _needs_workers(settings: Any, drive: Drive) -> None:
    settings.DISPATCHER = {"queue_grace": 30, "run_lease": 60}


def on_the_way() -> int:
    return CallQueue.objects.filter(state=State.DISPATCHED).count()


def come(drive: Drive) -> None:
    """Let a worker of this queue come, where workers are known."""
    if drive.delivery != "http":
        drive.come(drive.queue)


# Without workers


@pytest.mark.parametrize("is_many", [False, True])
def test_a_queue_without_workers_holds_no_room_that_another_could_use(drive: Drive, *, is_many: bool) -> None:
    drive.key(concurrency=1)
    nowhere = drive.beside(drive.delivery, "nowhere")
    come(drive)
    lonely = nowhere.send_many(3, "api") if is_many else [nowhere.send("api")]
    served = drive.send("api")
    assert ids(drive.take(2)) == [served.id]
    assert set(drive.states(lonely)) == {State.AVAILABLE}
    assert drive.use() == 1


def test_a_queue_whose_workers_are_gone_leaves_the_room_of_its_key_to_those_behind(drive: Drive) -> None:
    drive.key(concurrency=1)
    gone = drive.beside(drive.delivery, "gone")
    come(drive)
    come(gone)
    drive.send("api")
    (run,) = drive.take()
    parked, behind = gone.send("api"), drive.send("api")
    assert gone.take() == []
    drive.clock.forward(61)
    come(drive)
    assert ids(drive.take(ends=[run])) == [behind.id]
    assert drive.state(parked) is State.AVAILABLE


@of_celery
def test_a_worker_that_comes_or_comes_back_lets_its_queue_go_on(drive: Drive) -> None:
    first = drive.send()
    assert drive.held(first) == {}
    drive.come()
    assert ids(drive.take()) == [first.id]
    drive.clock.forward(1_000)
    calls = drive.send_many(3, priority=1)
    assert drive.states(calls) == [State.AVAILABLE] * 3
    drive.come()
    assert ids(drive.take(3)) == ids(calls)


@of_the_broker
@pytest.mark.parametrize(
    ("has_stopped", "seconds", "starts"), [(False, 59, 1), (False, 61, 0), (True, 29, 1), (True, 31, 0)]
)
def test_a_queue_is_served_for_a_lease_after_a_heartbeat_and_for_the_grace_after_a_stop(
    drive: Broker, seconds: float, starts: int, *, has_stopped: bool
) -> None:
    drive.come()
    if has_stopped:
        drive.stop()
    drive.clock.forward(seconds)
    drive.send()
    assert len(drive.take()) == starts


@of_the_broker
def test_what_is_on_the_way_to_a_queue_without_workers_waits_again_and_spends_nothing(drive: Broker) -> None:
    drive.key(concurrency=1)
    drive.come()
    call = drive.send("api")
    drive.clock.forward(59)
    assert (drive.recover(), drive.state(call)) == (0, State.DISPATCHED)
    drive.clock.forward(2)
    assert drive.recover() == 1
    row = drive.row(call)
    assert (row.state, row.attempt, row.errors, drive.use()) == (State.AVAILABLE, 0, [], 0)
    drive.come()
    assert ids(drive.take()) == [call.id]


@of_celery
def test_what_runs_in_a_queue_without_workers_is_left_to_its_lease(drive: Drive) -> None:
    drive.come()
    drive.send()
    (run,) = drive.take()
    drive.stop()
    drive.clock.forward(59)
    drive.recover()
    assert drive.state(run) is State.ACTIVE


@of_celery
def test_without_a_grace_workers_are_not_asked_for(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"queue_grace": None}
    call = drive.send()
    assert ids(drive.take()) == [call.id]


# The bound of what is on its way


@of_the_broker
def test_no_more_calls_are_on_their_way_than_the_setting_allows(drive: Broker, settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_ahead": 3}
    calls = [drive.send() for _ in range(4)] + drive.send_many(4, priority=9)
    drive.tick()
    assert on_the_way() == 3
    runs = drive.take(2)
    assert ids(runs) == ids(calls[:2])
    # What has started is not on its way any more: as many of the highest priority follow.
    drive.tick()
    assert on_the_way() == 3
    assert ids(drive.take(3)) == ids([calls[2], calls[4], calls[5]])


@of_the_broker
def test_each_queue_has_a_bound_of_its_own_and_drains_behind_it_without_ticks(drive: Broker, settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_ahead": 2}
    news = drive.beside("broker", "news")
    calls = {each: each.send_many(10) for each in (drive, news)}
    assert on_the_way() == 4
    for each, of_queue in calls.items():
        assert each.drain() == ids(of_queue)
        assert on_the_way() <= 4


@of_the_broker
def test_one_more_in_the_setting_does_not_let_fewer_calls_go(drive: Broker, settings: Any) -> None:
    for ahead in (64, 65):
        settings.DISPATCHER = {"dispatch_ahead": ahead}
        drive.beside("broker", f"ahead{ahead}").send_many(70)
        assert CallQueue.objects.filter(state=State.DISPATCHED, queue=f"ahead{ahead}").count() == ahead


@of_the_broker
def test_near_the_bound_an_end_lets_several_calls_go_or_none(drive: Broker, settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_ahead": 200}
    drive.send_many(203)
    for expected in (199, 200, 199, 199):
        (run,) = drive.take()
        drive.end(run)
        assert on_the_way() == expected


@of_the_broker
def test_an_end_lets_ten_calls_go_and_their_ends_the_others(drive: Broker, settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_ahead": 1}
    calls = drive.send_many(30)
    settings.DISPATCHER = {}
    (run,) = drive.take()
    drive.end(run)
    assert on_the_way() == 10
    assert drive.drain() == ids(calls[1:])


@of_the_broker
def test_a_send_leaves_its_call_to_ends_while_each_process_has_one_on_its_way(drive: Broker) -> None:
    come(drive)
    calls = [drive.send() for _ in range(4)]
    assert drive.states(calls) == [State.DISPATCHED] * 2 + [State.AVAILABLE] * 2
    first, second = drive.take(2)
    drive.end(first)
    assert drive.states(calls[2:]) == [State.DISPATCHED] * 2
    drive.take(2)
    assert drive.state(drive.send()) is State.DISPATCHED
    drive.end(second)


@of_the_broker
def test_what_its_queue_holds_goes_before_what_an_end_lets_in(drive: Broker, settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_ahead": 96}
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    low = drive.send("api")
    drive.send_many(96)
    high = drive.send(priority=5)
    assert len(drive.take()) == 1
    drive.end(run)
    assert drive.state(low) == State.AVAILABLE
    drive.tick()
    assert ids(drive.take(96))[-1] == high.id


@pytest.mark.deliveries("direct")
def test_a_worker_takes_nothing_of_a_queue_that_others_deliver_by_now(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send_many(2, "api")
    (run,) = drive.take()
    Queue.objects.filter(name=drive.queue).update(delivery="http")
    assert drive.take(ends=[run]) == []
    drive.send()
    assert drive.take() == []
