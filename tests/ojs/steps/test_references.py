"""What rows of the project point to is kept, and stops no cleanup."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import models

from dispatcher.ojs import retention
from dispatcher.ojs.models import EventLogEntry, PullWorker, Workflow
from tests.builders import T0, at
from tests.steps.test_references import Referencing, kept, referencing  # noqa: F401

DAY = 86_400


@pytest.mark.django_db
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


@pytest.mark.django_db
def test_a_workflow_whose_part_is_referenced_is_kept_as_a_whole(
    referencing: Referencing,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    def workflow(parent: Workflow | None = None) -> Workflow:
        return Workflow.objects.create(kind="chain", state="completed", plan=[], parent=parent, ended_at=at(-99 * DAY))

    wholes = [workflow() for _ in range(3)]
    child = workflow(wholes[1])
    payment = referencing(models.PROTECT, Workflow)
    payment.objects.create(row=child)
    assert retention.delete_workflows(now=T0) == 2
    assert set(Workflow.objects.all()) == {wholes[1], child}
    assert len(kept(caplog)) == 1


@pytest.mark.django_db
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
