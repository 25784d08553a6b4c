"""What the database itself refuses: rows of calls and keys that can not be."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, models, transaction

from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.builders import SECOND, T0, at, key, waiting

pytestmark = pytest.mark.django_db

IN_FLIGHT: dict[str, Any] = {"ticket": UUID(int=7), "dispatched_at": T0, "started_at": T0}
CALLS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"state": State.AVAILABLE}, {"ticket": UUID(int=7)}, "call_in_flight_has_a_ticket"),
    ({"state": State.DISPATCHED, **IN_FLIGHT}, {"ticket": None}, "call_in_flight_has_a_ticket"),
    ({"state": State.ACTIVE, **IN_FLIGHT}, {"ticket": None}, "call_in_flight_has_a_ticket"),
    ({"state": State.COMPLETED, "finished_at": T0}, {"ticket": UUID(int=7)}, "call_in_flight_has_a_ticket"),
    ({"state": State.ACTIVE, **IN_FLIGHT}, {"started_at": None}, "call_active_has_started"),
    ({"state": State.COMPLETED, "finished_at": T0}, {"finished_at": None}, "call_ended_has_finished"),
    ({"state": State.RETRYABLE, "scheduled_at": at(60)}, {"finished_at": T0}, "call_ended_has_finished"),
    ({"state": State.SCHEDULED, "scheduled_at": at(60)}, {"scheduled_at": None}, "call_due_has_a_time"),
    ({"state": State.RETRYABLE, "scheduled_at": at(60)}, {"scheduled_at": None}, "call_due_has_a_time"),
    ({"state": State.AVAILABLE}, {"state": "waiting"}, "call_state_is_known"),
    ({"state": State.AVAILABLE}, {"priority": 101}, "call_priority_is_in_range"),
    ({"state": State.AVAILABLE}, {"reason": "poison"}, "call_discarded_has_a_reason"),
    (
        {"state": State.DISCARDED, "finished_at": T0, "reason": "failed"},
        {"reason": None},
        "call_discarded_has_a_reason",
    ),
]
KEYS: list[tuple[dict[str, Any], str]] = [
    ({"name": "a b"}, "key_name_is_well_formed"),
    ({"name": "api\n"}, "key_name_is_well_formed"),
    ({"rate_limit": 5}, "key_rate_is_whole_or_absent"),
    ({"rate_period": SECOND}, "key_rate_is_whole_or_absent"),
    ({"rate_limit": 0, "rate_period": SECOND}, "key_rate_is_whole_or_absent"),
    ({"rate_limit": 1, "rate_period": timedelta(0)}, "key_rate_is_whole_or_absent"),
    ({"throttle_limit": 5}, "key_throttle_is_whole_or_absent"),
    ({"override_rate_limit": 5}, "key_override_rate_is_whole_or_absent"),
    ({"override_throttle_period": SECOND}, "key_override_throttle_is_whole_or_absent"),
]


def test_the_database_refuses_calls_and_keys_that_can_not_be() -> None:
    row = key("api")
    for fields, wrong, constraint in CALLS:
        call = waiting("api")
        CallQueue.objects.filter(id=call.id).update(**fields)
        assert refused(call, wrong) == constraint, wrong
    for wrong, constraint in KEYS:
        assert refused(row, wrong) == constraint, wrong


def refused(row: models.Model, wrong: dict[str, Any]) -> str | None:
    """Return the constraint that refuses this change of a row."""
    with pytest.raises(IntegrityError) as error, transaction.atomic():
        type(row)._default_manager.filter(pk=row.pk).update(**wrong)  # noqa: SLF001 -- Django's documented name
    name: str | None = error.value.__cause__.diag.constraint_name  # type: ignore[union-attr]
    return name
