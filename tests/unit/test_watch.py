"""A process serves one tick at a time: how long, what extends it, and what becomes of a pile of old ticks."""

from datetime import timedelta
from threading import Thread

import pytest

from dispatcher.engine.ticker import Ticker

TICK, NONE = timedelta(seconds=1), timedelta(0)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ticker(clock: Clock) -> Ticker:
    """Return a ticker that runs."""
    ticker = Ticker(clock)
    assert ticker.begin(TICK)
    return ticker


def wait(until: float, clock: Clock) -> timedelta:
    return timedelta(seconds=until - clock.now)


def test_a_run_lasts_a_tick_and_a_little_more_however_late_the_backlog_is(ticker: Ticker, clock: Clock) -> None:
    assert not ticker.is_over(wait(1001.19, clock))
    assert not ticker.is_over(timedelta(days=-1))
    assert ticker.is_over(wait(1001.2, clock))
    clock.now = ticker.until
    assert ticker.begin(TICK)
    clock.now = ticker.until
    assert ticker.is_over(timedelta(days=-1))


def test_a_run_ends_when_nothing_falls_due_or_when_it_was_broken_off(ticker: Ticker) -> None:
    assert ticker.is_over(None)
    assert ticker.begin(TICK)
    ticker.abort()
    assert ticker.begin(TICK)


def test_a_tick_that_comes_meanwhile_extends_the_run_and_has_it_look_once_more(ticker: Ticker, clock: Clock) -> None:
    clock.now += 0.9
    assert not ticker.begin(TICK)
    assert not ticker.is_over(None)
    assert ticker.pause(TICK * 100, least=NONE)
    assert ticker.until == pytest.approx(1002.1)
    assert not ticker.is_over(wait(1002.0, clock))
    assert not ticker.pause(NONE, least=NONE)
    assert ticker.is_over(None)


def test_a_pile_of_old_ticks_adds_no_time(ticker: Ticker) -> None:
    assert not any(ticker.begin(TICK) for _ in range(3600))
    assert ticker.until == pytest.approx(1001.2)


def test_ticks_that_one_thread_serves_in_turn_do_not_come_later_and_later(clock: Clock) -> None:
    """Each is busy to the end of its ticker, and the next one has waited for it."""
    ticker, sent_at = Ticker(clock), clock.now
    for _ in range(1000):
        clock.now = max(clock.now + 0.003, sent_at)
        assert ticker.begin(TICK)
        clock.now = ticker.until
        assert ticker.is_over(NONE)
        sent_at += 1
    assert clock.now - sent_at < 0.25


def test_ticks_of_any_phase_leave_hardly_a_gap(clock: Clock) -> None:
    ticker = Ticker(clock)
    for lateness in (0.0, 0.1, 0.2, 0.21, 0.24, 0.26, 0.3, 0.9):
        begun = clock.now = clock.now + lateness
        assert ticker.begin(TICK)
        assert ticker.until >= begun + 0.95
        clock.now = begun + 1
        assert ticker.is_over(TICK)


def test_a_keeper_that_hangs_keeps_no_other_away(ticker: Ticker, clock: Clock) -> None:
    for _ in range(2):
        clock.now += 0.5
        assert not ticker.begin(TICK)
    clock.now += 0.5
    assert ticker.begin(TICK)
    # The first one comes back to find that it is not alone.
    assert ticker.is_over(None)
    assert not ticker.begin(TICK)


def test_one_who_waits_is_called_at_once(ticker: Ticker) -> None:
    other = Thread(target=ticker.begin, args=[TICK])
    other.start()
    assert ticker.pause(timedelta(seconds=60), least=NONE)
    other.join()
