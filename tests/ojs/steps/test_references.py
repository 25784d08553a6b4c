"""What rows of the project point to is kept, and stops no cleanup."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.db import connection, models

from dispatcher.models import CallQueue
from dispatcher.ojs import retention
from dispatcher.ojs.models import EventLogEntry, PullWorker, Workflow
from dispatcher.states import State
from tests.builders import T0, at, waiting

DAY = 86_400
Referencing = Callable[..., type[models.Model]]


def ended(*, days_ago: float = 100) -> CallQueue:
    call = waiting()
    CallQueue.objects.filter(id=call.id).update(state=State.COMPLETED, finished_at=at(-days_ago * DAY))
    return call


@pytest.fixture
def referencing() -> Iterator[Referencing]:
    """Return how to make a model of the project that points to one of the dispatcher's."""
    made: list[type[models.Model]] = []

    def make(on_delete: Any, to: type[models.Model] = CallQueue) -> type[models.Model]:
        fields = {
            "__module__": __name__,
            "row": models.ForeignKey(to, on_delete=on_delete, null=True, related_name="+"),
            "Meta": type("Meta", (), {"app_label": "shop"}),
        }
        made.append(type("Payment", (models.Model,), fields))
        with connection.schema_editor() as editor:
            editor.create_model(made[-1])
        return made[-1]

    yield make
    del apps.all_models["shop"]["payment"]
    apps.clear_cache()


def kept(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage() for record in caplog.records if record.name == "dispatcher.lifecycle.retention.references"
    ]


@pytest.mark.django_db
@pytest.mark.parametrize("on_delete", [models.PROTECT, models.CASCADE])
def test_rows_that_point_to_the_event_log_or_to_workflows_stop_no_cleanup(
    referencing: Referencing, on_delete: Any, settings: Any
) -> None:
    settings.DISPATCHER = {"event_retention": timedelta(days=1)}
    entries = [EventLogEntry.objects.create(kind="rate_limit.exceeded", data={}, at=at(-5 * DAY)) for _ in range(2)]
    payment = referencing(on_delete, EventLogEntry)
    payment.objects.create(row=entries[0])
    assert retention.delete_entries(now=T0) == (1 if on_delete is models.PROTECT else 2)


@pytest.mark.django_db
def test_a_workflow_whose_part_is_referenced_is_kept_as_a_whole(
    referencing: Referencing, caplog: pytest.LogCaptureFixture
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
def test_a_worker_that_is_referenced_is_kept_and_no_other(referencing: Referencing) -> None:
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


@pytest.fixture
def table() -> Iterator[Callable[[str, str], None]]:
    """Return how to make a table that points to one of the dispatcher's, of which Django knows nothing."""

    def make(to: str, kind: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                f"CREATE TABLE shop_ledger (row_id {kind} CONSTRAINT ledger_row REFERENCES {to}"
                " DEFERRABLE INITIALLY DEFERRED)"
            )

    yield make
    with suppress(Exception), connection.cursor() as cursor:
        cursor.execute("DROP TABLE shop_ledger")
