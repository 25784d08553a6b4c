"""Ticks: one goes on until what is due within it is done, and a process serves one at a time."""

from datetime import timedelta
from typing import Any, Never

import pytest
from django.db import OperationalError
from django.utils import timezone

from dispatcher import engine
from dispatcher.engine.ticker import Ticker
from dispatcher.lifecycle import schedule
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.builders import SECOND, states, waiting

pytestmark = pytest.mark.django_db


# How long until something is due


# A tick


def test_a_tick_serves_what_falls_due_within_its_second(settings: Any) -> None:
    settings.DISPATCHER = {"tick": 5}
    soon = CallQueue.objects.send("noop", scheduled_at=timezone.now() + SECOND / 4)
    later = CallQueue.objects.send("noop", scheduled_at=timezone.now() + 60 * SECOND)
    assert states([soon]) == [State.SCHEDULED]
    # It waits for the first, and ends when nothing more is due before its own end.
    assert engine.tick() == 1
    assert states([soon, later]) == [State.DISPATCHED, State.SCHEDULED]


def test_a_tick_that_comes_while_its_process_serves_another_returns_at_once() -> None:
    ticker = Ticker()
    assert ticker.begin(SECOND)
    call = waiting()
    assert engine.tick(ticker=ticker) == 0
    assert states([call]) == [State.AVAILABLE]
    # Another process does not mind, and this one neither when the first tick has ended.
    assert engine.tick(ticker=Ticker()) == 1
    ticker.abort()
    waiting()
    assert engine.tick(ticker=ticker) == 1


def test_a_tick_that_is_served_looks_again_for_those_that_came_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    ticker, late = Ticker(), []

    def look() -> timedelta | None:
        """Have a call and a tick come between the look of a pass and the end of the tick."""
        if not late:
            late.append(waiting())
            assert engine.tick(ticker=ticker) == 0
        return None

    monkeypatch.setattr(schedule, "next_due", look)
    assert engine.tick(ticker=ticker) == 1
    assert states(late) == [State.DISPATCHED]


def test_a_tick_that_fails_leaves_the_next_one_free_to_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    ticker, call = Ticker(), waiting()

    def fail() -> Never:
        raise OperationalError

    with monkeypatch.context() as broken:
        broken.setattr(schedule, "next_due", fail)
        with pytest.raises(OperationalError):
            engine.tick(ticker=ticker)
    assert states([call]) == [State.DISPATCHED]
    waiting()
    assert engine.tick(ticker=ticker) == 1
