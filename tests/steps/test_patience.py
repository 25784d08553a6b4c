"""Where the database is away, a worker tries again; what it asked for may have been done all the same."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pytest
from django.db import InterfaceError, OperationalError, connection, transaction
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.ending import Ending, InFlight
from dispatcher.engine import attempt, ends, workers
from dispatcher.errors import RateLimited, WorkerLost
from dispatcher.lifecycle import claim, take
from dispatcher.lifecycle.finish import Ended
from dispatcher.lifecycle.run import Failed, RetryAsked, Returned, Stopped
from dispatcher.lifecycle.take import Taker
from dispatcher.models import CallQueue, RateLimitKey, Slot, Start
from dispatcher.states import State
from tests.builders import HERE, committed, key, seen, states, ticket_of

pytestmark = committed


def break_off() -> None:
    """Have the server end this connection, as it does when it is shut down."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def losing_answers(step: Callable[..., Any], times: int = 1) -> Callable[..., Any]:
    """Do a step, and lose its answer so many times: what it did is done."""
    left = [None] * times

    def lose(*args: Any, **kwargs: Any) -> Any:
        done = step(*args, **kwargs)
        if left:
            left.pop()
            break_off()
        return done

    return lose


def losing_questions(step: Callable[..., Any]) -> Callable[..., Any]:
    """Lose the first question: what it asked for was not done."""
    left = [None]

    def lose(*args: Any, **kwargs: Any) -> Any:
        if left:
            left.pop()
            break_off()
        return step(*args, **kwargs)

    return lose


@pytest.mark.parametrize("losing", [losing_questions, losing_answers])
def test_a_claim_outlasts_a_connection_that_breaks(
    call: CallQueue, losing: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "claim", losing(claim.claim))
    assert isinstance(attempt.claim_or_wait(call.id, ticket_of(call), claim_id=uuid4()), claim.Claimed)
    assert (seen(call).state, seen(call).attempt) == (State.ACTIVE, 1)


def test_the_claim_of_another_is_not_taken_for_ones_own_whose_answer_was_lost(
    call: CallQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_another = partial(claim.claim, call.id, ticket_of(call))

    def lose_to_another(*args: Any, **kwargs: Any) -> Any:
        by_another()
        return claim_it(*args, **kwargs)

    claim_it = losing_questions(claim.claim)
    monkeypatch.setattr(claim, "claim", lose_to_another)
    ran: list[int] = []
    assert engine.execute(call.id, ticket_of(call), partial(ran.append, 1)) is claim.Refused.STALE
    assert (ran, seen(call).attempt) == ([], 1)


def test_a_claim_whose_answer_comes_when_its_start_is_over_is_admitted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    key("counted", rate=(1, 60))
    call = seen(CallQueue.objects.send("noop", keys=["counted"]))
    claim_it = losing_answers(claim.claim)

    def claim_for_long(*args: Any, **kwargs: Any) -> Any:
        try:
            return claim_it(*args, **kwargs)
        finally:
            connection.close()
            long_ago = timezone.now() - timedelta(minutes=2)
            CallQueue.objects.filter(state=State.ACTIVE).update(started_at=long_ago)
            Start.objects.update(at=long_ago)

    monkeypatch.setattr(claim, "claim", claim_for_long)
    ran: list[int] = []
    ticket = ticket_of(call)
    assert engine.execute(call.id, ticket, partial(ran.append, 1)) is claim.Refused.MISSED
    # The key has room again, so it went at once, under another ticket.
    again = seen(call)
    assert (ran, again.state, again.attempt, again.ticket != ticket) == ([], State.DISPATCHED, 0, True)


@pytest.mark.parametrize("losing", [losing_questions, losing_answers])
def test_the_outcome_of_a_run_outlasts_a_connection_that_breaks(
    call: CallQueue, losing: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = CallQueue.objects.send("noop", keys=["api"])
    monkeypatch.setattr(take, "take", losing(take.take))
    assert engine.execute(call.id, ticket_of(call), lambda: "done") == Returned(result="done")
    assert (seen(call).state, seen(call).result, seen(call).attempt) == (State.COMPLETED, "done", 1)
    assert states([behind]) == [State.DISPATCHED]
    assert Slot.objects.count() == 1


@pytest.mark.parametrize("losing", [losing_questions, losing_answers])
@pytest.mark.parametrize(("may_retry", "state"), [(True, State.RETRYABLE), (False, State.DISCARDED)])
def test_a_failure_is_recorded_once_though_its_answer_is_lost(
    call: CallQueue,
    losing: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    *,
    may_retry: bool,
    state: State,
) -> None:
    behind = CallQueue.objects.send("noop", keys=["api"])
    monkeypatch.setattr(take, "take", losing(take.take))
    error = RetryAsked(ValueError("bad"), timedelta(minutes=5), may_retry=may_retry)
    outcome = engine.execute(call.id, ticket_of(call), partial(throw, error))
    assert isinstance(outcome, Failed)
    assert outcome.may_retry is may_retry
    assert not may_retry or timedelta(minutes=4) < (outcome.wait or timedelta(0)) <= timedelta(minutes=5)
    assert (seen(call).state, seen(call).attempt, len(seen(call).errors)) == (state, 1, 1)
    assert states([behind]) == [State.DISPATCHED]


@pytest.mark.parametrize("losing", [losing_questions, losing_answers])
def test_a_stop_is_recorded_once_though_its_answer_is_lost(
    call: CallQueue, losing: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "stop", losing(ends.stop))
    outcome = engine.execute(call.id, ticket_of(call), partial(throw, RateLimited(60)))
    assert isinstance(outcome, Stopped)
    assert (seen(call).state, seen(call).attempt, Slot.objects.count()) == (State.AVAILABLE, 0, 0)
    assert RateLimitKey.objects.filter(name="api", blocked_until__isnull=False).exists()


@pytest.mark.parametrize("by", ["recovery", "a stop of its worker", "the loss of its process", "a stop by hand"])
def test_the_end_that_another_gave_an_attempt_is_not_taken_for_ones_own_whose_answer_was_lost(
    call: CallQueue, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    claim_id = uuid4()
    ticket = ticket_of(call)

    def lose_to_another(*args: Any, **kwargs: Any) -> Any:
        if not ended:
            ended.append(True)
            match by:
                case "recovery":
                    Slot.objects.update(lease_until=timezone.now() - timedelta(hours=1))
                    assert engine.recover(now=timezone.now()) == 1
                case "a stop of its worker":
                    with monkeypatch.context() as other_process:
                        other_process.setattr(attempt, "running", frozenset)
                        assert workers.release_all(HERE.id) == 1
                case "the loss of its process":
                    gone = InFlight(call_id=call.id, ticket=ticket, claim=claim_id)
                    assert engine.lose([gone], WorkerLost("killed"), is_crash=True)
                case _:
                    cancelled = Ending(state=State.CANCELLED)
                    ended_by = Ended(call_id=call.id, ticket=ticket, claim_id=None, ending=cancelled)
                    assert record(Taker(), [ended_by]).ended
            break_off()
        return record(*args, **kwargs)

    ended: list[bool] = []
    record = take.take
    monkeypatch.setattr(take, "take", lose_to_another)
    assert engine.execute(call.id, ticket, lambda: "late", worker=HERE.id, claim_id=claim_id) is None
    assert seen(call).result is None


def test_a_finish_whose_answer_was_lost_is_known_again_after_the_call_was_dispatched_again(
    call: CallQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = take.take

    def fail_and_be_dispatched(*args: Any, **kwargs: Any) -> Any:
        done = record(*args, **kwargs)
        if done.ended:
            assert api.run_now([call.id]) == [call.id]
            break_off()
        return done

    monkeypatch.setattr(take, "take", fail_and_be_dispatched)
    outcome = engine.execute(call.id, ticket_of(call), partial(throw, ValueError("bad")))
    assert isinstance(outcome, Failed)
    assert outcome.may_retry
    assert (seen(call).state, seen(call).attempt) == (State.DISPATCHED, 1)


def test_a_finish_whose_answer_was_lost_says_nothing_of_the_attempt_that_follows(
    call: CallQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = take.take

    def fail_and_be_claimed(*args: Any, **kwargs: Any) -> Any:
        done = record(*args, **kwargs)
        if done.ended:
            assert api.run_now([call.id]) == [call.id]
            assert isinstance(claim.claim(call.id, ticket_of(seen(call))), claim.Claimed)
            break_off()
        return done

    monkeypatch.setattr(take, "take", fail_and_be_claimed)
    assert engine.execute(call.id, ticket_of(call), partial(throw, ValueError("bad"))) is None
    assert (seen(call).state, seen(call).attempt) == (State.ACTIVE, 2)


def test_a_claim_that_was_refused_puts_its_call_back_when_the_database_is_there_again(
    call: CallQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.pause("api")
    monkeypatch.setattr(ends, "requeue", losing_questions(ends.requeue))
    assert engine.execute(call.id, ticket_of(call), pytest.fail) is claim.Refused.KEY_CLOSED
    assert states([call]) == [State.AVAILABLE]


def throw(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("fault", [OperationalError, InterfaceError])
def test_retries_end_and_then_the_error_is_raised(settings: Any, fault: type[Exception]) -> None:
    settings.DISPATCHER = {"patience": 0.3}
    tried: list[int] = []

    def fail() -> None:
        tried.append(1)
        raise fault

    with pytest.raises(fault):
        attempt.retry_while_unavailable(fail, again=fail)
    assert len(tried) > 1


def test_within_the_callers_transaction_nothing_is_tried_again() -> None:
    tried: list[int] = []

    def fail() -> None:
        tried.append(1)
        raise OperationalError

    with pytest.raises(OperationalError), transaction.atomic():
        attempt.retry_while_unavailable(fail, again=fail)
    assert len(tried) == 1


def test_errors_of_other_kinds_are_raised_at_once() -> None:
    with pytest.raises(ZeroDivisionError):
        attempt.retry_while_unavailable(lambda: 1 / 0, again=pytest.fail)
