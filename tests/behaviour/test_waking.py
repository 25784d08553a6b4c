"""Workers that wait for calls are woken by the process that gives them something to do, and one for each thing.

Only workers that take calls from PostgreSQL are: messages wake those of a broker, and over HTTP workers ask.
"""

import pytest
from django.db import transaction

from tests.drive import Drive
from tests.faults import Idle

pytestmark = pytest.mark.deliveries("direct")


def test_a_send_wakes_one_idle_worker_and_not_all(drive: Drive) -> None:
    with Idle(drive, "one") as one, Idle(drive, "two") as two, Idle(drive, "three") as three:
        drive.send()
        assert sorted([one.notices(), two.notices(), three.notices()]) == [0, 0, 1]


def test_a_send_wakes_no_worker_that_is_silent_busy_or_of_another_queue(drive: Drive) -> None:
    with Idle(drive, "silent") as silent:
        drive.clock.forward(3600)
        with Idle(drive, "busy") as busy, Idle(drive, "other", queues=["other"]) as other:
            busy.begin()
            drive.send()
            assert (silent.notices(), busy.notices(), other.notices()) == (0, 0, 0)


def test_a_send_skips_a_process_that_has_died_and_wakes_the_next(drive: Drive) -> None:
    with Idle(drive, "one") as died:
        drive.clock.forward(1)
        with Idle(drive, "two") as alive:
            died.die()
            drive.send()
            assert alive.notices() == 1


def test_a_send_that_is_rolled_back_wakes_no_worker(drive: Drive) -> None:
    with Idle(drive, "one") as one:
        with transaction.atomic():
            drive.send()
            transaction.set_rollback(True)
        assert one.notices() == 0
        with transaction.atomic():
            drive.send()
            assert one.notices() == 0
        assert one.notices() == 1


def test_a_trip_that_leaves_calls_wakes_another_idle_worker(drive: Drive) -> None:
    with Idle(drive, "one") as one, Idle(drive, "two") as two:
        drive.send_many(3)
        assert sorted([one.notices(), two.notices()]) == [0, 1]
        assert len(drive.take(1, worker="three")) == 1
        assert one.notices() + two.notices() == 1


def test_a_worker_that_comes_to_rest_sees_what_was_sent_before(drive: Drive) -> None:
    with Idle(drive, "one") as one:
        assert not one.has_calls
    drive.send()
    with Idle(drive, "one") as one, Idle(drive, "other", queues=["other"]) as other:
        assert (one.has_calls, other.has_calls) == (True, False)


def test_a_worker_that_has_its_part_of_a_key_is_not_kept_awake_by_its_calls(drive: Drive) -> None:
    drive.key(concurrency=5, per_worker=1)
    drive.send_many(2, "api")
    assert len(drive.take(worker="one")) == 1
    with Idle(drive, "one") as one, Idle(drive, "two") as two:
        assert (one.has_calls, two.has_calls) == (False, True)


def test_a_tick_wakes_an_idle_worker_that_no_sender_has_woken(drive: Drive) -> None:
    drive.send()
    with Idle(drive, "one") as one:
        drive.tick()
        assert one.notices() == 1


def test_room_that_an_end_gives_back_wakes_an_idle_worker_of_the_queue_that_waits_for_it(drive: Drive) -> None:
    drive.key(concurrency=1)
    drive.send("api")
    (run,) = drive.take()
    post = drive.beside("direct", "post")
    post.send("api")
    assert post.take(worker="two") == []
    with Idle(post, "two") as two:
        assert drive.end(run)
        assert two.notices() == 1
