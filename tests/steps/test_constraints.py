"""Rows that can not be: those of keys are refused by the database itself, those of calls are found by the audit."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db import IntegrityError, models, transaction

from dispatcher.audit import audit
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.builders import SECOND, T0, at, erase, key, waiting

pytestmark = pytest.mark.django_db

IN_FLIGHT: dict[str, Any] = {"ticket": UUID(int=7), "dispatched_at": T0, "started_at": T0}
CALLS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"state": State.AVAILABLE}, {"ticket": UUID(int=7)}),
    ({"state": State.DISPATCHED, **IN_FLIGHT}, {"ticket": None}),
    ({"state": State.ACTIVE, **IN_FLIGHT}, {"ticket": None}),
    ({"state": State.COMPLETED, "finished_at": T0}, {"ticket": UUID(int=7)}),
    ({"state": State.ACTIVE, **IN_FLIGHT}, {"started_at": None}),
    ({"state": State.COMPLETED, "finished_at": T0}, {"finished_at": None}),
    ({"state": State.RETRYABLE, "scheduled_at": at(60)}, {"finished_at": T0}),
    ({"state": State.SCHEDULED, "scheduled_at": at(60)}, {"scheduled_at": None}),
    ({"state": State.RETRYABLE, "scheduled_at": at(60)}, {"scheduled_at": None}),
    ({"state": State.AVAILABLE}, {"state": "waiting"}),
    ({"state": State.AVAILABLE}, {"oversized_cost": 5}),
    ({"state": State.AVAILABLE}, {"lane_id": None}),
    ({"state": State.AVAILABLE}, {"reason": "poison"}),
    ({"state": State.DISCARDED, "finished_at": T0, "reason": "failed"}, {"reason": None}),
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


def test_the_database_refuses_keys_that_can_not_be() -> None:
    row = key("api")
    for wrong, constraint in KEYS:
        assert refused(row, wrong) == constraint, wrong


def test_the_audit_finds_calls_that_can_not_be_by_the_field() -> None:
    key("api")
    for fields, wrong in CALLS:
        call = waiting("api")
        CallQueue.objects.filter(id=call.id).update(**fields)
        assert wrong_fields() == [], fields
        CallQueue.objects.filter(id=call.id).update(**wrong)
        (fields_of_call,) = wrong_fields()
        assert fields_of_call == ["placement" if name == "lane_id" else name for name in wrong], wrong
        erase(call)


def wrong_fields() -> list[list[str]]:
    """Return the fields of each call that do not go together."""
    (found,) = [each for each in audit(settle=timedelta(0)).found if each.check.name == "wrong_fields"]
    return [finding.facts["fields"] for finding in found.findings]


def refused(row: models.Model, wrong: dict[str, Any]) -> str | None:
    """Return the constraint that refuses this change of a row."""
    with pytest.raises(IntegrityError) as error, transaction.atomic():
        type(row)._default_manager.filter(pk=row.pk).update(**wrong)  # noqa: SLF001 -- Django's documented name
    name: str | None = error.value.__cause__.diag.constraint_name  # type: ignore[union-attr]
    return name
