"""Rows of the project that point to what has ended: a cleanup does what their `on_delete` says, and goes on."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, models

from dispatcher import engine
from dispatcher.lifecycle.retention import old, unused
from dispatcher.models import CallQueue, Lane, RateLimitKey
from dispatcher.states import State
from tests.builders import T0, at, committed, waiting

pytestmark = [pytest.mark.pooler, pytest.mark.django]

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
    return [record.getMessage() for record in caplog.records if record.name == "dispatcher.lifecycle.retention.old"]


@pytest.mark.django_db
@pytest.mark.parametrize("on_delete", [models.PROTECT, models.RESTRICT, models.DO_NOTHING])
def test_a_call_that_a_row_of_the_project_keeps_is_kept_and_all_others_go(
    referencing: Referencing, on_delete: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(old, "_BATCH", 4)
    payment = referencing(on_delete)
    calls = [ended(days_ago=100 - number) for number in range(10)]
    for call in (*calls[:5], calls[7]):
        payment.objects.create(row=call)
    assert engine.cleanup(now=T0) == 4
    assert set(CallQueue.objects.all()) == {*calls[:5], calls[7]}
    assert payment.objects.filter(row__isnull=False).count() == 6
    assert kept(caplog) == ["6 calls could go but for what still points to them, and were kept: 6 by shop.Payment.row"]
    payment.objects.all().delete()
    assert engine.cleanup(now=T0) == 6


@pytest.mark.django_db
@pytest.mark.parametrize(("on_delete", "left"), [(models.CASCADE, []), (models.SET_NULL, [None, None])])
def test_a_cleanup_does_what_a_field_of_the_project_says(
    referencing: Referencing, on_delete: Any, left: list[None], caplog: pytest.LogCaptureFixture
) -> None:
    payment = referencing(on_delete)
    calls = [ended() for _ in range(3)]
    running = waiting()
    for call in (*calls[:2], running):
        payment.objects.create(row=call)
    assert engine.cleanup(now=T0) == 3
    assert list(CallQueue.objects.all()) == [running]
    assert list(payment.objects.exclude(row=running).values_list("row", flat=True)) == left
    assert kept(caplog) == []


# Foreign keys that SQL alone knows


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


def point_to(row: models.Model) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO shop_ledger VALUES (%s)", [row.pk])


@committed
def test_a_table_that_points_to_a_call_keeps_that_call_and_no_other(
    table: Callable[[str, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    calls = [ended() for _ in range(5)]
    table("dispatcher_callqueue", "uuid")
    point_to(calls[2])
    assert engine.cleanup(now=T0) == 4
    assert list(CallQueue.objects.all()) == [calls[2]]
    assert kept(caplog) == [
        "1 calls could go but for what still points to them, and were kept: 1 by shop_ledger.ledger_row"
    ]


@committed
@pytest.mark.parametrize("model", [Lane, RateLimitKey])
def test_a_table_that_points_to_a_lane_or_key_keeps_that_one_and_no_other(
    table: Callable[[str, str], None], model: type[models.Model], settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 1}}}
    calls = [waiting(f"tenant:{number}") for number in range(4)]
    CallQueue.objects.filter(id__in=[call.id for call in calls]).update(state=State.CANCELLED, finished_at=at(0))
    CallQueue.objects.ended().delete()
    referenced = model._default_manager.order_by("pk")[1]  # noqa: SLF001 -- Django's documented name
    table(model._meta.db_table, "bigint")
    point_to(referenced)
    later = at(1_000 * DAY)
    lanes, keys = unused.remove_lanes(now=later), unused.remove_keys(now=later)
    assert (lanes, keys) == ((3, 3) if model is Lane else (4, 3))
    assert model._default_manager.filter(pk=referenced.pk).exists()  # noqa: SLF001
    assert len(kept(caplog)) == 1
