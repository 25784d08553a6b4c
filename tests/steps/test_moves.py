"""Every verb against every state: a call moves as the table of moves allows, or not at all."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError, transaction

from dispatcher import api, engine
from dispatcher.engine import feed
from dispatcher.lifecycle import admit, claim, finish, publish, schedule
from dispatcher.models import CallQueue, Lane, Queue, Slot
from dispatcher.states import DUE, FIRST, IN_FLIGHT, MOVES, TERMINAL, Reason, State
from tests.builders import SECOND, T0, at, key, seen, waiting

pytestmark = pytest.mark.django_db

TICKET = UUID(int=7)
CLAIM = uuid4()
LATER = at(3600)


def call_in(state: State, *, on_limit: str = "wait", position: int = 0) -> CallQueue:
    """Return a call that stands there, with the slots and times that it has there."""
    call = waiting("api", on_limit=on_limit, expires_at=at(7200), queue=f"queue{position}")
    CallQueue.objects.filter(id=call.id).update(
        state=state,
        ticket=TICKET if state in IN_FLIGHT else None,
        dispatched_at=T0 if state in IN_FLIGHT else None,
        started_at=T0 if state is State.ACTIVE else None,
        finished_at=T0 if state in TERMINAL else None,
        reason=Reason.FAILED if state is State.DISCARDED else None,
        claim=CLAIM if state is State.ACTIVE else None,
        scheduled_at=at(60) if state in (*DUE, State.PENDING) else None,
        attempt=0 if state in FIRST else 1,
    )
    if state in IN_FLIGHT:
        slot_key = call.lane.key_ids[0]
        Slot.objects.create(call=call, key_id=slot_key, cost=1, lease_until=at(30), started_at=seen(call).started_at)
    return seen(call)


def admitting(call: CallQueue) -> None:
    admit.admit(lanes=[call.lane_id], now=at(1))


def admitting_at_the_limit(call: CallQueue) -> None:
    api.limit("api", {"concurrency": 0})
    admitting(call)


def taking_directly(call: CallQueue) -> None:
    Queue.objects.update_or_create(name=call.queue, defaults={"delivery": "direct"})
    Lane.objects.filter(id=call.lane_id).update(is_held=True)
    feed.step(feed.Taker(worker=uuid4(), queues=[call.queue], tasks=["noop"]), room=1)


VERBS: dict[str, Callable[[CallQueue], object]] = {
    "admit": admitting,
    "take directly": taking_directly,
    "stop at a limit": admitting_at_the_limit,
    "claim": lambda call: claim.claim(call.id, TICKET, now=at(1)),
    "claim late": lambda call: claim.restart(call.id, TICKET, claim_id=CLAIM, now=at(1)),
    "claim with a ticket that was replaced": lambda call: claim.claim(call.id, uuid4(), now=at(1)),
    "publish": lambda call: publish.publish([call], now=at(1)),
    "complete": lambda call: finish.complete(call.id, TICKET, result=1, now=at(1)),
    "fail": lambda call: finish.fail(call.id, TICKET, error=ValueError(), attempt=1, policy=None, now=at(1)),
    "fail for good": lambda call: finish.fail(
        call.id, TICKET, error=ValueError(), attempt=1, policy={"max_attempts": 1}, now=at(1)
    ),
    "finish with a ticket that was replaced": lambda call: finish.complete(call.id, uuid4(), result=1, now=at(1)),
    "put back": lambda call: finish.put_back(call.id, TICKET, from_states=list(State)),
    "put off": lambda call: finish.put_back(call.id, TICKET, from_states=list(State), wait=SECOND),
    "expire": lambda call: finish.expire(call.id, TICKET, now=at(9000)),
    "wake what is due": lambda _: schedule.wake_due(now=LATER),
    "discard what expired": lambda _: schedule.discard_expired(now=at(9000)),
    "recover": lambda _: engine.recover(now=LATER),
    "lose": lambda call: engine.lose(call.id, TICKET, RuntimeError(), is_crash=True, now=at(1)),
    "fail unknown": lambda call: engine.fail(call.id, TICKET, LookupError()),
    "cancel": lambda call: api.cancel([call.id]),
    "retry": lambda call: api.retry([call.id]),
    "run now": lambda call: api.run_now([call.id]),
    "activate": lambda call: api.activate([call.id]),
    "cancel while it runs": lambda call: finish.cancel(call.id, TICKET, now=at(1)),
    "clean up": lambda _: engine.cleanup(now=T0),
    "sweep": lambda _: engine.sweep(),
    "tick": lambda _: engine.tick(now=LATER),
}
"""All that changes calls. Those that also dispense are stopped by the pause, so that each makes one move only."""

DOES_NOT_DISPENSE = {"take directly", "admit", "stop at a limit", "claim", "claim late", "publish"}

seen_moves: set[tuple[State, State]] = set()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("state", list(State))
def test_a_verb_makes_an_allowed_move_or_none(state: State, verb: str) -> None:
    key("api")
    on_limit = {"stop at a limit": ["drop", "reschedule"]}.get(verb, ["wait"])
    calls = [call_in(state, on_limit=action, position=place) for place, action in enumerate(on_limit)]
    if verb not in DOES_NOT_DISPENSE:
        api.pause("api")
    for call in calls:
        VERBS[verb](call)
        after = seen(call)
        if after.state != state:
            assert State(after.state) in MOVES[state]
            seen_moves.add((state, State(after.state)))
        assert after.slots.exists() == (after.state in IN_FLIGHT)
        assert (after.ticket is not None) == (after.state in IN_FLIGHT)
        assert (after.finished_at is not None) == (after.state in TERMINAL)


def test_every_allowed_move_is_made_by_a_verb() -> None:
    """Runs after the matrix, and says nothing where only a part of it ran."""
    if len(seen_moves) < 15:
        pytest.skip("the matrix of moves did not run")
    allowed = {(state, after) for state, moves in MOVES.items() for after in moves}
    assert allowed - seen_moves == set()


# What the database itself refuses


@pytest.mark.parametrize(
    ("state", "wrong", "constraint"),
    [
        (State.AVAILABLE, {"ticket": TICKET}, "call_in_flight_has_a_ticket"),
        (State.DISPATCHED, {"ticket": None}, "call_in_flight_has_a_ticket"),
        (State.ACTIVE, {"ticket": None}, "call_in_flight_has_a_ticket"),
        (State.COMPLETED, {"ticket": TICKET}, "call_in_flight_has_a_ticket"),
        (State.ACTIVE, {"started_at": None}, "call_active_has_started"),
        (State.COMPLETED, {"finished_at": None}, "call_ended_has_finished"),
        (State.RETRYABLE, {"finished_at": T0}, "call_ended_has_finished"),
        (State.SCHEDULED, {"scheduled_at": None}, "call_due_has_a_time"),
        (State.RETRYABLE, {"scheduled_at": None}, "call_due_has_a_time"),
        (State.AVAILABLE, {"state": "waiting"}, "call_state_is_known"),
        (State.AVAILABLE, {"priority": 101}, "call_priority_is_in_range"),
        (State.AVAILABLE, {"reason": "poison"}, "call_discarded_has_a_reason"),
        (State.DISCARDED, {"reason": None}, "call_discarded_has_a_reason"),
    ],
)
def test_the_database_refuses_a_call_that_can_not_be(state: State, wrong: dict[str, object], constraint: str) -> None:
    key("api")
    call = call_in(state)
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        CallQueue.objects.filter(id=call.id).update(**wrong)


@pytest.mark.parametrize(
    ("wrong", "constraint"),
    [
        ({"name": "a b"}, "key_name_is_well_formed"),
        ({"name": "api\n"}, "key_name_is_well_formed"),
        ({"rate_limit": 5}, "key_rate_is_whole_or_absent"),
        ({"rate_period": SECOND}, "key_rate_is_whole_or_absent"),
        ({"rate_limit": 0, "rate_period": SECOND}, "key_rate_is_whole_or_absent"),
        ({"rate_limit": 1, "rate_period": timedelta(0)}, "key_rate_is_whole_or_absent"),
        ({"throttle_limit": 5}, "key_throttle_is_whole_or_absent"),
        ({"override_rate_limit": 5}, "key_override_rate_is_whole_or_absent"),
        ({"override_throttle_period": SECOND}, "key_override_throttle_is_whole_or_absent"),
    ],
)
def test_the_database_refuses_a_key_that_can_not_be(wrong: dict[str, object], constraint: str) -> None:
    row = key("api")
    with pytest.raises(IntegrityError, match=constraint), transaction.atomic():
        type(row).objects.filter(id=row.id).update(**wrong)
