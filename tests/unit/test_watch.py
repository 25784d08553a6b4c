"""A process serves one tick at a time: how long, who prolongs it, and what becomes of a pile of old ticks."""

from datetime import timedelta
from threading import Thread

import pytest

from dispatcher.watch import Watch

TICK = timedelta(seconds=1)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> Watch:
    return Watch(clock)


def wait(until: float, clock: Clock) -> timedelta:
    return timedelta(seconds=until - clock.now)


def test_a_watch_lasts_a_tick_and_a_little_more(watch: Watch, clock: Clock) -> None:
    assert watch.begin(TICK)
    assert not watch.is_over(wait(1001.19, clock))
    assert watch.is_over(wait(1001.2, clock))


def test_a_watch_ends_when_nothing_falls_due(watch: Watch) -> None:
    assert watch.begin(TICK)
    assert watch.is_over(None)
    assert watch.begin(TICK)


def test_a_tick_that_comes_meanwhile_prolongs_the_watch_and_has_it_look_once_more(watch: Watch, clock: Clock) -> None:
    watch.begin(TICK)
    clock.now += 0.9
    assert not watch.begin(TICK)
    assert not watch.is_over(None)
    assert watch.pause(TICK * 100, least=timedelta(0))
    assert watch.until == pytest.approx(1002.1)
    assert not watch.is_over(wait(1002.0, clock))
    assert not watch.pause(timedelta(0), least=timedelta(0))
    assert watch.is_over(None)


def test_a_pile_of_old_ticks_adds_no_time(watch: Watch) -> None:
    assert watch.begin(TICK)
    assert not any(watch.begin(TICK) for _ in range(3600))
    assert watch.until == pytest.approx(1001.2)


def test_ticks_that_one_thread_serves_in_turn_do_not_come_later_and_later(watch: Watch, clock: Clock) -> None:
    """Each is busy to the end of its watch, and the next one has waited for it."""
    sent_at = clock.now
    for _ in range(1000):
        clock.now = max(clock.now + 0.003, sent_at)
        assert watch.begin(TICK)
        clock.now = watch.until
        assert watch.is_over(timedelta(0))
        sent_at += 1
    assert clock.now - sent_at < 0.25


def test_ticks_of_any_phase_leave_hardly_a_gap(watch: Watch, clock: Clock) -> None:
    for lateness in (0.0, 0.1, 0.2, 0.21, 0.24, 0.26, 0.3, 0.9):
        begun = clock.now + lateness
        clock.now = begun
        assert watch.begin(TICK)
        assert watch.until >= begun + 0.95
        clock.now = begun + 1
        assert watch.is_over(timedelta(seconds=1))


def test_a_keeper_that_hangs_keeps_nobody_away(watch: Watch, clock: Clock) -> None:
    assert watch.begin(TICK)
    for _ in range(2):
        clock.now += 0.5
        assert not watch.begin(TICK)
    clock.now += 0.5
    assert watch.begin(TICK)
    # The first one comes back to find that it is not alone.
    assert watch.is_over(None)
    assert not watch.begin(TICK)


def test_a_watch_that_was_broken_off_is_over(watch: Watch) -> None:
    watch.begin(TICK)
    watch.break_off()
    assert watch.begin(TICK)


def test_one_who_waits_is_called_at_once(watch: Watch) -> None:
    watch.begin(TICK)
    other = Thread(target=watch.begin, args=[TICK])
    other.start()
    assert watch.pause(timedelta(seconds=60), least=timedelta(0))
    other.join()


def test_a_watch_ends_in_time_however_late_the_backlog_is(watch: Watch, clock: Clock) -> None:
    assert watch.begin(TICK)
    assert not watch.is_over(timedelta(days=-1))
    clock.now = watch.until
    assert watch.is_over(timedelta(days=-1))
