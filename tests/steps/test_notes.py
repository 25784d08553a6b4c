"""Which notes a worker's trips read: young ones, and those that came since its last trip."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from dispatcher.engine import direct, sent
from dispatcher.engine.dispenser import dispense
from dispatcher.lifecycle import heartbeat
from dispatcher.lifecycle.take import Notes, Taker
from dispatcher.models import CallQueue, Note
from tests.builders import HERE, committed
from tests.steps.feeding import TAKER, send

pytestmark = [committed, pytest.mark.usefixtures("direct")]


@pytest.fixture
def taker() -> Taker:
    """Return a worker that has made trips: there is a lane, and it sleeps."""
    heartbeat.record(HERE, [])
    taker = replace(TAKER, notes=Notes())
    send()
    assert [len(direct.step(taker, room=1).starts) for _ in range(2)] == [1, 0]
    return taker


def age_notes() -> None:
    """Let notes have been written some seconds ago."""
    Note.objects.update(at=F("at") - timedelta(seconds=5))


def test_a_trip_reads_the_notes_since_the_last_one(taker: Taker) -> None:
    assert taker.notes is not None
    assert taker.notes.since is not None
    assert timezone.now() - timedelta(seconds=60) < taker.notes.since <= timezone.now() - timedelta(seconds=1)
    send()
    assert len(direct.step(taker, room=1).starts) == 1


def test_who_commits_late_notes_its_lane_again(taker: Taker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sent, "_LONG_S", 0.0)
    with transaction.atomic():
        send()
        age_notes()
        CallQueue.objects.update(created_at=F("created_at") - timedelta(seconds=5))
    assert Note.objects.count() == 2
    assert len(direct.step(taker, room=1).starts) == 1


def test_now_and_then_a_trip_reads_what_was_committed_late_by_who_then_died(taker: Taker) -> None:
    taker = replace(taker, notes=Notes())
    assert direct.step(taker, room=1).starts == []
    with transaction.atomic():
        send()
        age_notes()
    assert len(direct.step(taker, room=1).starts) == 1


def test_a_tick_reads_old_notes(taker: Taker) -> None:
    with transaction.atomic():
        send()
        age_notes()
    assert direct.step(taker, room=1).starts == [], "the note is old, and its sender does not know it"
    dispense()
    assert Note.objects.count() == 0
    assert len(direct.step(taker, room=1).starts) == 1
