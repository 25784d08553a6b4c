"""Throttles: starts that were missed, openings that outlive a process, and soft time limits before the start."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from dispatcher import api, engine
from dispatcher.engine import attempt
from dispatcher.lifecycle import admit, claim, control
from dispatcher.lifecycle.claim import Claimed, Refused
from dispatcher.models import CallQueue
from dispatcher.reports import rate_limit_status
from dispatcher.states import State
from tests.apps import APPS
from tests.builders import T0, admitted, at, go, key, seen, snapshot, started, ticket_of, waiting

pytestmark = [pytest.mark.django_db, pytest.mark.pooler]

FAR = T0 + timedelta(days=36_500)
FAST, SLOW = (10, 1), (1, 3_600)


def claimed(call: CallQueue, **options: Any) -> Claimed | Refused:
    return claim.claim(call.id, ticket_of(seen(call)), **options)


# What governs the next start


def override() -> None:
    control.override("api", {"throttle": FAST}, FAR)


def test_the_report_shows_the_next_start_under_the_throttle_in_force() -> None:
    key("api", throttle=SLOW)
    started("api")
    (slow,) = rate_limit_status(["api"], now=at(1))
    api.limit("api", {"throttle": (1, 10)})
    (fast,) = rate_limit_status(["api"], now=at(1))
    assert (slow.next_start_at, fast.next_start_at) == (at(3_600.01), at(10.01))


# When a key opens for the lanes that are parked on it


def limit() -> None:
    control.limit("api", {"throttle": FAST})


def end_override() -> None:
    control.end_override("api")


# A start beyond the horizon


def test_a_start_that_was_missed_and_would_come_beyond_the_horizon_is_given_up(settings: Any) -> None:
    settings.DISPATCHER = {"horizon": 1, "lead": 0}
    key("api", throttle=(2, 1))
    first, second = waiting("api"), waiting("api")
    assert len(go(first, second)) == 2
    claim_id, ticket = uuid4(), ticket_of(seen(first))
    claim.claim(first.id, ticket, claim_id=claim_id, now=T0)
    claimed(second, now=T0)
    api.limit("api", {"throttle": SLOW})
    before = snapshot()
    assert claim.restart(first.id, ticket, claim_id=claim_id, now=at(0.1)) is Refused.TOO_EARLY
    assert snapshot() == before


# A soft time limit before the start


@pytest.mark.django_db(transaction=True, available_apps=APPS)
@pytest.mark.parametrize("where", ["before the claim", "in the wait", "after it"])
def test_a_soft_time_limit_before_the_start_spends_no_attempt(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    key("api", throttle=FAST)
    call = waiting("api")
    CallQueue.objects.update(crashes=2)
    admit.admit(lanes=[call.lane_id])

    def limited(*_: Any, **__: Any) -> Any:
        raise SoftTimeLimitExceeded

    with monkeypatch.context() as patch:
        match where:
            case "before the claim":
                patch.setattr(attempt, "claim_in_time", limited)
            case "in the wait":
                patch.setattr(claim, "is_in_time", limited)
            case _:
                patch.setattr(attempt.Attempt, "run_task", limited)
        ran: list[str] = []
        refused = engine.execute(call.id, ticket_of(seen(call)), lambda: ran.append("ran"))
    assert refused is Refused.INTERRUPTED
    stored = seen(call)
    assert ran == []
    assert (stored.attempt, stored.crashes, stored.errors) == (0, 2, [])
    assert stored.state in {State.AVAILABLE, State.DISPATCHED}


def test_a_soft_time_limit_in_the_task_is_the_task_s() -> None:
    call = admitted()

    def task() -> None:
        raise SoftTimeLimitExceeded

    engine.execute(call.id, ticket_of(call), task)
    assert (seen(call).attempt, seen(call).errors[0]["type"]) == (1, "SoftTimeLimitExceeded")
