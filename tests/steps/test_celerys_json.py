"""Arguments of the types of Celery's own JSON: the worker gets what `.delay()` would give it."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from celery import Task, shared_task
from django.utils.translation import gettext_lazy
from kombu.utils import json as celery_json

from dispatcher import engine
from dispatcher.errors import CallInvalid
from dispatcher.models import CallQueue
from tests.builders import committed, seen
from tests.steps.conftest import Broker, app
from tests.steps.send_variants import SendVariant, every_send_variant

pytestmark = [committed, pytest.mark.pooler]

NATIVE: list[Any] = [
    UUID("0189d3b2-5a5c-7000-8000-000000000001"),
    Decimal("10.50"),
    datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    datetime(2030, 1, 2),  # noqa: DTZ001 -- Celery takes it
    date(2030, 1, 2),
    time(3, 4, 5),
    {"of": [Decimal(1), {"at": date(2030, 1, 2)}]},
    b"text",
    b"\xff\0",
]
ran: list[Any] = []


@shared_task(name="tests.native", bind=True, max_retries=1)
def note(self: Task, *args: Any, **kwargs: Any) -> None:
    """Note the arguments, and ask once for another attempt with others."""
    ran.append((list(args), kwargs))
    if self.request.retries == 0 and "again" in kwargs:
        raise self.retry(kwargs={"again": kwargs["again"], "more": Decimal(2)}, countdown=0)


@every_send_variant
def test_the_message_is_that_of_delay(send: SendVariant, broker: Broker) -> None:
    # Words that Django translates late are the worker's as texts.
    args = [*NATIVE, gettext_lazy("late")]
    app.send_task("tests.native", args, {"kept": NATIVE}, queue="celery")
    (delayed,) = broker.take()
    call = send(task="tests.native", args=args, kwargs={"kept": NATIVE})
    engine.dispense()
    ours = next(message for message in broker.take() if message.headers["id"] == str(call.id))
    assert ours.decode()[:2] == delayed.decode()[:2]
    assert (ours.headers["argsrepr"], ours.headers["kwargsrepr"]) == (
        delayed.headers["argsrepr"],
        delayed.headers["kwargsrepr"],
    )


def test_the_row_holds_them_as_celery_writes_them() -> None:
    call = seen(CallQueue.objects.send("tests.native", args=NATIVE))
    assert celery_json.loads(celery_json.dumps(call.args)) == NATIVE


def test_a_task_that_runs_eagerly_and_asks_for_another_attempt_gets_them_too(broker: Broker) -> None:
    del broker
    ran.clear()
    app.conf.task_always_eager = True
    try:
        CallQueue.objects.send(note, args=NATIVE, kwargs={"again": Decimal("1.5")})
        engine.tick()
    finally:
        app.conf.task_always_eager = False
    assert ran[0] == (NATIVE, {"again": Decimal("1.5")})
    call = CallQueue.objects.get()
    assert celery_json.loads(celery_json.dumps(call.kwargs)) == {"again": Decimal("1.5"), "more": Decimal(2)}


def test_what_only_looks_like_a_type_of_celerys_is_left_as_it_is(broker: Broker) -> None:
    CallQueue.objects.send("tests.native", args=[{"__type__": "other", "__value__": 1}])
    assert len(broker.take()) == 1


@pytest.mark.parametrize("field", ["meta", "call_data"])
def test_what_no_worker_reads_as_arguments_is_json_alone(field: str) -> None:
    given = {
        "meta": {"task": "t", "meta": {"of": NATIVE[0]}},
        "call_data": {"call_data": {"method": "f", "params": {"of": NATIVE[0]}}},
    }
    with pytest.raises(CallInvalid, match="UUID is not JSON"):
        CallQueue.objects.send(**given[field])


def test_a_serializer_that_has_no_such_types_takes_json_alone() -> None:
    with pytest.raises(CallInvalid, match=r"^args\[0\]: UUID is not JSON"):
        CallQueue.objects.send(note.s(*NATIVE).set(serializer="yaml"))
