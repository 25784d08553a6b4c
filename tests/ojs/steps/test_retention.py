"""Retention: entries of the event log and workflows are kept for as long as the settings say."""

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import engine
from dispatcher.lifecycle import retention as core
from dispatcher.ojs import retention
from dispatcher.ojs.models import EventLogEntry, Part, Workflow
from tests.builders import T0, at

pytestmark = pytest.mark.django_db

DAY = 86_400


def log_events(*days_ago: float) -> None:
    EventLogEntry.objects.bulk_create(
        EventLogEntry(kind="rate_limit.exceeded", data={}, at=at(-days * DAY)) for days in days_ago
    )


def ages() -> list[float]:
    return sorted((T0 - entry.at) / timedelta(days=1) for entry in EventLogEntry.objects.all())


def test_every_recovery_trims_the_event_log(settings: Any) -> None:
    settings.DISPATCHER = {"event_retention": timedelta(days=1)}
    log_events(0.5, 0.9, 1.1, 2)
    engine.recover(now=T0)
    assert ages() == [0.5, 0.9]
    log_events(3)
    engine.cleanup(now=T0)
    assert ages() == [0.5, 0.9]


def test_a_recovery_trims_a_long_event_log_slice_by_slice_the_oldest_first(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DISPATCHER = {"event_retention": timedelta(days=1)}
    monkeypatch.setattr(core, "_BATCH", 2)
    log_events(*range(2, 10))
    clock = iter([0, 0.06, 0.12, 10, 10.1])
    monkeypatch.setattr(core, "monotonic", lambda: next(clock))
    # Of its tenth of a second two batches take 0.12.
    engine.recover(now=T0)
    assert ages() == [2, 3, 4, 5]
    engine.recover(now=T0)
    assert ages() == [2, 3]


def test_without_a_setting_nothing_of_the_event_log_is_deleted() -> None:
    log_events(10_000)
    engine.recover(now=T0)
    engine.cleanup(now=T0)
    assert ages() == [10_000]


def workflow(*, days_ago: float | None, parent: Workflow | None = None) -> Workflow:
    """Make a workflow of one part."""
    made = Workflow.objects.create(
        kind="chain",
        state="running" if days_ago is None else "completed",
        plan=[],
        parent=parent,
        ended_at=None if days_ago is None else at(-days_ago * DAY),
    )
    Part.objects.create(workflow=made, role="step", place=0)
    return made


def test_workflows_go_in_small_batches_with_what_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_WORKFLOWS", 2)
    kept = [workflow(days_ago=29), workflow(days_ago=None)]
    kept.append(workflow(days_ago=50, parent=kept[1]))
    for day in range(31, 36):
        whole = workflow(days_ago=day)
        workflow(days_ago=day, parent=workflow(days_ago=day, parent=whole))
    assert retention.delete_workflows(now=T0) == 15
    assert {*Workflow.objects.all()} == {*kept}
    assert Part.objects.count() == 3


def test_a_cleanup_of_workflows_stops_when_its_time_is_up(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DISPATCHER = {"cleanup_budget": 10}
    monkeypatch.setattr(retention, "_WORKFLOWS", 2)
    oldest = [workflow(days_ago=40 - number) for number in range(6)]
    clock = iter(range(0, 1_000, 6))
    monkeypatch.setattr(core, "monotonic", lambda: next(clock))
    # It starts at 0; batches are over at 6 and at 12, when its time is up.
    assert retention.delete_workflows(now=T0) == 4
    assert {*Workflow.objects.all()} == {*oldest[4:]}
