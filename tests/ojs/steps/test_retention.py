"""Retention: events and workflows are kept as long as the settings say; what rows of the project point to, longer."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import models

from dispatcher import engine
from dispatcher.lifecycle.retention import old
from dispatcher.ojs import extension as retention
from dispatcher.ojs.models import EventLogEntry, Part, PullWorker, Workflow
from tests.builders import T0, at
from tests.steps.test_references import Referencing, kept, referencing  # noqa: F401

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
    monkeypatch.setattr(old, "_BATCH", 2)
    log_events(*range(2, 10))
    clock = iter([0, 0.06, 0.12, 10, 10.1])
    monkeypatch.setattr(old, "monotonic", lambda: next(clock))
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
    monkeypatch.setattr(old, "monotonic", lambda: next(clock))
    # It starts at 0; batches are over at 6 and at 12, when its time is up.
    assert retention.delete_workflows(now=T0) == 4
    assert {*Workflow.objects.all()} == {*oldest[4:]}


# What rows of the project point to


@pytest.mark.parametrize("on_delete", [models.PROTECT, models.CASCADE])
def test_rows_that_point_to_the_event_log_or_to_workflows_stop_no_cleanup(
    referencing: Referencing,  # noqa: F811
    on_delete: Any,
    settings: Any,
) -> None:
    settings.DISPATCHER = {"event_retention": timedelta(days=1)}
    entries = [EventLogEntry.objects.create(kind="rate_limit.exceeded", data={}, at=at(-5 * DAY)) for _ in range(2)]
    payment = referencing(on_delete, EventLogEntry)
    payment.objects.create(row=entries[0])
    assert retention.delete_entries(now=T0) == (1 if on_delete is models.PROTECT else 2)


def test_a_workflow_whose_part_is_referenced_is_kept_as_a_whole(
    referencing: Referencing,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    wholes = [workflow(days_ago=99) for _ in range(3)]
    child = workflow(days_ago=99, parent=wholes[1])
    payment = referencing(models.PROTECT, Workflow)
    payment.objects.create(row=child)
    assert retention.delete_workflows(now=T0) == 2
    assert set(Workflow.objects.all()) == {wholes[1], child}
    assert len(kept(caplog)) == 1


def test_a_worker_that_is_referenced_is_kept_and_no_other(referencing: Referencing) -> None:  # noqa: F811
    names = ["gone", "referenced", "here"]
    _, referenced, here = [
        PullWorker.objects.create(id=uuid4(), name=name, seen_at=at(0 if name == "here" else -9 * DAY))
        for name in names
    ]
    payment = referencing(models.PROTECT, PullWorker)
    payment.objects.create(row=referenced)
    assert retention.delete_workers(now=T0) == 1
    assert set(PullWorker.objects.all()) == {referenced, here}
    payment.objects.all().delete()
    assert retention.delete_workers(now=T0) == 1
