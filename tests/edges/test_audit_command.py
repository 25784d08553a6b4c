"""manage.py dispatcher_audit: what it notes, prints and returns."""

import json
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.utils import timezone

from dispatcher.audit import audit
from dispatcher.audit.invariants import CHECKS, NOTES
from dispatcher.lifecycle import heartbeat
from dispatcher.models import CallQueue, Note, PeriodicRun, RateLimitKey, Slot, Worker
from dispatcher.states import Reason, State
from tests.builders import HERE, committed, waiting
from tests.edges.auditing import HOUR, found, noted, over_limit_concurrency, printed, send

pytestmark = [committed, pytest.mark.django]


# Notes


def test_a_queue_without_workers_is_noted_and_breaks_nothing(settings: Any) -> None:
    settings.DISPATCHER = {"queue_grace": 30}
    send()
    assert noted() == {"queue_unserved": 1}
    assert found() == []
    heartbeat.record(HERE, [])
    assert noted() == {}
    Worker.objects.update(serves_until=timezone.now() - HOUR)
    assert noted() == {"queue_unserved": 1}


def test_poison_is_noted_for_a_day() -> None:
    (call,) = send()
    Slot.objects.all().delete()
    ended = {"state": State.DISCARDED, "ticket": None, "reason": Reason.POISON}
    CallQueue.objects.filter(id=call.id).update(**ended, finished_at=timezone.now())
    assert noted() == {"poison": 1}
    CallQueue.objects.update(finished_at=timezone.now() - 25 * HOUR)
    assert noted() == {}


def test_a_transaction_that_stays_open_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(**{**connection.get_connection_params(), "autocommit": False}) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.execute("SELECT 1")
        assert noted() == {}
        monkeypatch.setattr("dispatcher.audit.OLD_TRANSACTION", timedelta(0))
        report = audit(settle=timedelta(0))
        sessions = {finding.target for note in report.notes for finding in note.findings}
        assert str(other.info.backend_pid) in sessions


def test_a_periodic_task_that_nothing_runs_is_noted() -> None:
    PeriodicRun.objects.create(name="dispatcher.tick", ran_at=timezone.now() - timedelta(minutes=5))
    PeriodicRun.objects.create(name="dispatcher.recover", ran_at=timezone.now())
    PeriodicRun.objects.create(name="dispatcher.cleanup", ran_at=timezone.now() - timedelta(days=20))
    assert noted() == {"periodic_overdue": 2}
    (note,) = (note for note in audit(settle=timedelta(0)).notes if note.count)
    assert [finding.what for finding in note.findings] == ["dispatcher.cleanup", "dispatcher.tick"]


def test_every_check_and_note_has_its_own_name() -> None:
    assert len({check.name for check in (*CHECKS, *NOTES)}) == len(CHECKS) + len(NOTES)


# The command


def test_a_healthy_database_exits_with_0_and_lists_every_check() -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    send("api", count=3)
    text, code = printed()
    assert code == 0
    lines = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert all(lines[check.name][1:] == [str(check.invariant), "0"] for check in CHECKS)
    assert "✓ Every invariant that rows can show holds" in text
    assert "Invariants 3 " in text


def test_a_breach_exits_with_1_and_says_what_it_is_about() -> None:
    over_limit_concurrency()
    text, code = printed()
    assert code == 1
    assert "over_limit (invariant 1), 1: More of a key was taken" in text
    assert "  key api: why concurrency, in_flight 2, concurrency 1" in text
    assert "✗ 1 finding," in text


def test_findings_beyond_the_examples_are_counted() -> None:
    send(count=25)
    Slot.objects.all().delete()
    text, code = printed()
    assert code == 1
    assert "call_without_slot (invariant 4), 25:" in text
    assert "  and 15 more" in text


def test_json_has_every_check_with_its_findings() -> None:
    waiting()
    Note.objects.all().delete()
    text, code = printed("--json")
    reply = json.loads(text)
    assert (code, reply["ok"], reply["notes"]) == (1, False, [])
    assert [check["name"] for check in reply["checks"]] == [check.name for check in CHECKS]
    (asleep,) = (check for check in reply["checks"] if check["findings"])
    (example,) = asleep.pop("examples")
    sentence = next(check.sentence for check in CHECKS if check.name == "unserved")
    assert asleep == {"name": "unserved", "invariant": 6, "sentence": sentence, "findings": 1, "repaired": 0}
    assert example["queue"] == "celery"


def test_a_repair_reports_what_it_repaired_and_exits_with_0_if_nothing_is_left() -> None:
    waiting()
    Note.objects.all().delete()
    text, code = printed("--repair")
    assert code == 0
    assert "Repaired: 1 (expected: 0)" in text
    assert printed("--repair", "--json")[1] == 0


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "601", "soon"])
def test_a_time_to_settle_that_is_none_is_refused(seconds: str) -> None:
    words = "invalid float value: 'soon'" if seconds == "soon" else "--settle: .* must be from 0 to 600 seconds"
    with pytest.raises(CommandError, match=words) as refused:
        call_command("dispatcher_audit", "--settle", seconds)
    assert refused.value.returncode == (1 if seconds == "soon" else 2)
