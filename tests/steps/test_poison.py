"""A call that keeps breaking down its process ends as poison."""

from dispatcher import api, engine
from dispatcher.lifecycle import claim, finish, heartbeat
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests.builders import HERE, at, committed, go, key, seen, ticket_of, waiting

pytestmark = committed


def test_a_call_that_takes_its_process_with_it_three_times_in_a_row_is_poison() -> None:
    heartbeat.record(HERE, [], now=at(0))
    call = waiting(retry={"max_attempts": 9, "initial_interval": 0})
    for crash in range(1, 4):
        assert seen(call).crashes == crash - 1
        go(call, now=at(crash))
        claim.claim(call.id, ticket_of(seen(call)), now=at(crash))
        engine.lose(call.id, ticket_of(seen(call)), RuntimeError("killed"), is_crash=True, now=at(crash + 0.5))
        CallQueue.objects.filter(state=State.RETRYABLE).update(state=State.AVAILABLE)
    assert (seen(call).state, seen(call).reason, seen(call).attempt) == (State.DISCARDED, "poison", 3)
    assert list(CallQueue.objects.poison()) == [call]
    assert len(seen(call).errors) == 3


def test_an_attempt_that_fails_by_itself_breaks_the_row_and_one_that_was_ended_does_not() -> None:
    heartbeat.record(HERE, [], now=at(0))
    call = waiting(retry={"max_attempts": 9, "initial_interval": 0})
    for crashes, expected in ((1, 1), (None, 1), (2, 2), (0, 0), (1, 1)):
        go(call, now=at(1))
        claim.claim(call.id, ticket_of(seen(call)), now=at(1))
        ticket = ticket_of(seen(call))
        finish.fail(call.id, ticket, error=ValueError(), attempt=1, policy=call.retry, crashes=crashes, now=at(2))
        assert seen(call).crashes == expected
        CallQueue.objects.update(state=State.AVAILABLE)


def test_a_retry_by_hand_begins_again() -> None:
    heartbeat.record(HERE, [], now=at(0))
    call = waiting(retry={"max_attempts": 1})
    go(call, now=at(1))
    claim.claim(call.id, ticket_of(seen(call)), now=at(1))
    engine.lose(call.id, ticket_of(seen(call)), RuntimeError(), is_crash=True, now=at(2))
    assert (seen(call).state, seen(call).reason, seen(call).crashes) == (State.DISCARDED, "failed", 1)
    api.retry([call.id])
    assert (seen(call).reason, seen(call).crashes, seen(call).attempt) == (None, 0, 0)


def test_a_claim_whose_start_had_not_come_spends_nothing() -> None:
    key("api", throttle=(1, 60))
    heartbeat.record(HERE, [], now=at(0))
    first, second = waiting("api"), waiting("api")
    go(first, second, now=at(0))
    claim.claim(first.id, ticket_of(seen(first)), now=at(0))
    go(second, now=at(59.9))
    claim.claim(second.id, ticket_of(seen(second)), now=at(59.9))
    assert seen(second).started_at > at(59.95)
    engine.lose(second.id, ticket_of(seen(second)), RuntimeError(), is_crash=True, now=at(59.95))
    assert (seen(second).state, seen(second).attempt, seen(second).errors) == (State.AVAILABLE, 0, [])
