"""Throttles: the next start in reports, and soft time limits before the start."""

from datetime import timedelta
from typing import Any

import pytest
from celery.exceptions import SoftTimeLimitExceeded

from dispatcher import api, engine
from dispatcher.engine import attempt
from dispatcher.lifecycle import claim
from dispatcher.lifecycle.claim import Claimed, Refused
from dispatcher.models import CallQueue, Note
from dispatcher.reports import rate_limit_status
from dispatcher.states import State
from tests.apps import APPS
from tests.builders import T0, admitted, at, finish, go, key, seen, started, ticket_of, waiting
from tests.clock import stopped_clock

pytestmark = [pytest.mark.django_db, pytest.mark.pooler]

FAST, SLOW = (10, 1), (1, 3_600)


# What governs the next start


def test_the_report_shows_the_next_start_under_the_throttle_in_force() -> None:
    key("api", throttle=SLOW)
    started("api")
    (slow,) = rate_limit_status(["api"], now=at(1))
    api.limit("api", {"throttle": (1, 10)})
    (fast,) = rate_limit_status(["api"], now=at(1))
    assert (slow.next_start_at, fast.next_start_at) == (at(3_600.01), at(10.01))


def test_a_throttle_far_below_a_cost_keeps_its_next_start_within_the_calendar() -> None:
    row = key("api")
    dear = admitted(costs={"api": 2**31 - 1})
    api.limit("api", {"throttle": (1, "P366D")})
    with stopped_clock(at(1)):
        assert isinstance(claim.claim(dear.id, ticket_of(dear)), Claimed)
    (status,) = rate_limit_status(["api"], now=at(2))
    assert status.next_start_at is not None
    assert timedelta(days=10_000) < status.next_start_at - T0 < timedelta(days=12_000)
    assert finish(seen(dear))
    cheap = waiting("api")
    assert go(cheap, now=at(3)) == []
    (note,) = Note.objects.filter(key_id=row.id, at__gt=at(3))
    assert timedelta(days=10_000) < note.at - T0 < timedelta(days=12_000)


# A soft time limit before the start


@pytest.mark.django_db(transaction=True, available_apps=APPS)
@pytest.mark.parametrize("where", ["before the claim", "in the wait", "after it"])
def test_a_soft_time_limit_before_the_start_spends_no_attempt(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    key("api", throttle=FAST)
    call = admitted("api")
    CallQueue.objects.update(crashes=2)

    def limited(*_: Any, **__: Any) -> Any:
        raise SoftTimeLimitExceeded

    with monkeypatch.context() as patch:
        # On a busy machine the start may be missed.
        patch.setattr(claim, "_LATE", timedelta(seconds=9))
        match where:
            case "before the claim":
                patch.setattr(attempt, "claim_or_wait", limited)
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
