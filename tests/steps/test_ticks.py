"""Ticks: one goes on until what is due within it is done."""

from typing import Any

import pytest
from django.utils import timezone

from dispatcher import engine
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.builders import SECOND, states

pytestmark = pytest.mark.django_db


def test_a_tick_serves_what_falls_due_within_its_second(settings: Any) -> None:
    settings.DISPATCHER = {"tick": 5}
    soon = CallQueue.objects.send("noop", scheduled_at=timezone.now() + SECOND / 4)
    later = CallQueue.objects.send("noop", scheduled_at=timezone.now() + 60 * SECOND)
    assert states([soon]) == [State.SCHEDULED]
    # It waits for the first, and ends when nothing more is due before its own end.
    assert engine.tick() == 1
    assert states([soon, later]) == [State.DISPATCHED, State.SCHEDULED]
