"""From the claim to the next call: engine.execute."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.engine import attempt
from dispatcher.errors import RateLimited
from dispatcher.lifecycle import claim
from dispatcher.lifecycle.claim import Refused
from dispatcher.lifecycle.run import Failed, RetryAsked
from dispatcher.models import RateLimitKey, Slot
from dispatcher.states import State
from tests.builders import SECOND, admitted, committed, key, seen, states, ticket_of

pytestmark = [committed, pytest.mark.pooler]


class CardDeclined(ValueError):
    """A kind of error that the tests' tasks raise."""


def test_a_last_failure_says_that_it_is_the_last() -> None:
    call = admitted(retry={"max_attempts": 1})
    error = RetryAsked(CardDeclined(), SECOND, may_retry=True)

    def task() -> None:
        raise error

    outcome = engine.execute(call.id, ticket_of(call), task)
    assert isinstance(outcome, Failed)
    assert not outcome.may_retry
    assert states([call]) == [State.DISCARDED]


def test_a_message_that_came_twice_and_was_refused_once_leaves_the_attempt_to_whom_it_started_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    key("api")
    call = admitted("api")
    ticket = ticket_of(call)

    def refused(*args: Any, **kwargs: Any) -> Refused:
        """Refuse the one just before the block ends, and let the other one in just after."""
        api.block("api", SECOND)
        answer = claim.claim(*args, **kwargs)
        api.resume("api")
        claim.claim(call.id, ticket, claim_id=uuid4())
        assert isinstance(answer, Refused)
        return answer

    monkeypatch.setattr(attempt, "claim_or_wait", refused)
    assert engine.execute(call.id, ticket, lambda: pytest.fail("it runs elsewhere")) is Refused.KEY_CLOSED
    assert (seen(call).state, seen(call).attempt, seen(call).ticket) == (State.ACTIVE, 1, ticket)
    assert Slot.objects.filter(call=call).exists()


@pytest.mark.parametrize("keys", [["api"], []], ids=["with a key", "without one"])
def test_a_provider_stops_for_a_year_at_the_most(keys: list[str]) -> None:
    key("api")
    call = admitted(*keys)

    def task() -> None:
        raise RateLimited(timedelta.max)

    engine.execute(call.id, ticket_of(call), task)
    until = RateLimitKey.objects.get().blocked_until if keys else seen(call).scheduled_at
    assert until is not None
    assert timedelta(days=365) < until - timezone.now() < timedelta(days=367)
