"""Control: what people do to keys and calls."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.errors import CallInvalid, KeyNotFound, PolicyInvalid
from dispatcher.lifecycle import control, finish
from dispatcher.lifecycle.claim import Refused
from dispatcher.limits.policy import Policy, stored
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.states import State
from tests.builders import (
    SECOND,
    admitted,
    at,
    committed,
    go,
    key,
    lane_of,
    seen,
    slots_of,
    started,
    states,
    ticket_of,
    waiting,
)
from tests.steps.conftest import Broker

pytestmark = [committed, pytest.mark.django]


def ended(state: State) -> CallQueue:
    """Return a call that has ended so."""
    call = started(retry={"max_attempts": 1}) if state is not State.CANCELLED else waiting()
    match state:
        case State.COMPLETED:
            finish.complete(call.id, ticket_of(call), result=1)
        case State.DISCARDED:
            finish.fail(call.id, ticket_of(call), error=ValueError("bad"), attempt=1, policy=call.retry)
        case State.CANCELLED:
            api.cancel([call.id])
    assert states([call]) == [state]
    return seen(call)


# Keys


@pytest.mark.parametrize(
    "verb",
    [
        api.pause,
        api.resume,
        lambda name: api.block(name, SECOND),
        lambda name: api.limit(name, {"concurrency": 1}),
        lambda name: api.override(name, until=at(60), concurrency=1),
    ],
    ids=["pause", "resume", "block", "limit", "override"],
)
def test_a_key_that_does_not_exist_is_named(verb: Callable[[str], None]) -> None:
    key("api")
    with pytest.raises(
        KeyNotFound, match=r"named 'apl'\. Did you mean 'api'\? See manage\.py rate_limit_status"
    ) as caught:
        verb("apl")
    assert caught.value.name == "apl"
    assert isinstance(caught.value, LookupError)


def test_a_pause_lets_what_runs_go_on() -> None:
    key("api")
    running, dispatched, call = started("api"), admitted("api"), waiting("api")
    api.pause("api")
    assert go(call) == []
    assert states([running, dispatched]) == [State.ACTIVE, State.DISPATCHED]
    assert finish.complete(running.id, ticket_of(running), result=None)
    assert engine.execute(dispatched.id, ticket_of(dispatched), lambda: None) is Refused.KEY_CLOSED
    assert states([dispatched]) == [State.AVAILABLE]


def test_a_resume_ends_a_pause_and_a_block_and_lets_those_in_who_waited() -> None:
    row = key("api", concurrency=2)
    api.pause("api")
    api.block("api", timedelta(hours=1))
    calls = [waiting("api") for _ in range(3)]
    go(*calls)
    api.resume("api")
    row.refresh_from_db()
    assert (row.is_paused, row.blocked_until) == (False, None)
    assert states(calls) == [State.DISPATCHED, State.DISPATCHED, State.AVAILABLE]


def test_a_pause_outlasts_a_block_and_a_deploy() -> None:
    row = key("api", concurrency=2)
    api.pause("api")
    key("api", concurrency=9)
    row.refresh_from_db()
    assert (row.is_paused, row.concurrency) == (True, 2)
    assert go(waiting("api"), now=at(10**8)) == []


def test_a_longer_block_stands() -> None:
    row, other = key("api"), key("other")
    assert sorted(control.block(60 * SECOND, names=["api"], keys=[other.id], now=at(0))) == [row.id, other.id]
    control.block(10 * SECOND, names=["api"], now=at(0))
    control.block(90 * SECOND, keys=[other.id], now=at(0))
    row.refresh_from_db()
    other.refresh_from_db()
    assert (row.blocked_until, other.blocked_until) == (at(60), at(90))


def test_a_raised_limit_lets_in_those_who_wait_at_once() -> None:
    key("api", concurrency=1)
    calls = [waiting("api") for _ in range(3)]
    assert len(go(*calls)) == 1
    api.limit("api", {"concurrency": 3})
    assert states(calls) == [State.DISPATCHED] * 3


def test_a_limit_replaces_all_limits_of_the_key() -> None:
    row = key("api", concurrency=1, rate=(1, 1), throttle=(1, 1))
    api.limit("api", {"rate": {"limit": 5, "period": "PT1M"}})
    row.refresh_from_db()
    assert (row.concurrency, row.rate_limit, row.rate_period, row.throttle_limit) == (
        None,
        5,
        timedelta(minutes=1),
        None,
    )


def test_a_limit_can_keep_those_that_it_does_not_name() -> None:
    row = key("api", concurrency=1, rate=(1, 1), throttle=(1, 1))
    control.limit("api", {"rate": (5, 60), "throttle": None}, keeps_others=True)
    row.refresh_from_db()
    assert stored(row) == Policy.parse({"concurrency": 1, "rate": (5, 60)})


@pytest.mark.parametrize("wrong", [{"concurrency": -1}, {"rate": 5}, {"speed": 1}, {"throttle": (1, "P1M")}], ids=str)
def test_limits_that_are_wrong_change_nothing(wrong: Any) -> None:
    key("api", concurrency=1)
    before = RateLimitKey.objects.values().get()
    with pytest.raises(PolicyInvalid):
        api.limit("api", wrong)
    with pytest.raises(PolicyInvalid):
        api.override("api", until=at(60), **wrong)
    assert RateLimitKey.objects.values().get() == before


def test_an_override_needs_a_time_with_a_zone() -> None:
    key("api")
    for until in (datetime(2030, 1, 1), None, "2030-01-01T00:00:00Z", SECOND):  # noqa: DTZ001
        with pytest.raises(PolicyInvalid, match=r"^until: "):
            api.override("api", until=until, concurrency=1)  # type: ignore[arg-type]


def orders() -> list[Any]:
    def limit(_: CallQueue) -> None:
        api.limit("api", {"concurrency": 1})

    def resume(_: CallQueue) -> None:
        api.limit("api", {})
        api.resume("api")

    def override(_: CallQueue) -> None:
        api.override("api", until=timezone.now() + timedelta(hours=1), concurrency=1)

    def run_now(call: CallQueue) -> None:
        api.limit("api", {})
        api.run_now([call.id])

    return [limit, resume, override, run_now]


@pytest.mark.parametrize("order", orders(), ids=lambda order: order.__name__)
def test_what_an_order_lets_in_is_published_when_the_order_is_committed(
    order: Callable[[CallQueue], None], broker: Broker
) -> None:
    key("api", concurrency=0)
    call = waiting("api")
    go(call)
    with transaction.atomic():
        order(call)
        assert (states([call]), broker.take()) == ([State.AVAILABLE], [])
    assert states([call]) == [State.DISPATCHED]
    assert [message.headers["id"] for message in broker.take()] == [str(call.id)]


@pytest.mark.parametrize("until", ["9999-12-31T23:59:59-05:00", "9999-12-31T23:59:59+00:00"])
def test_an_override_past_the_calendar_is_refused_since_no_pass_could_read_it(until: str) -> None:
    key("api")
    with pytest.raises(PolicyInvalid, match=r"^until: .* give a time from 0001-01-02 to 9999-12-30"):
        api.override("api", until=datetime.fromisoformat(until), concurrency=1)
    assert RateLimitKey.objects.get().override_until is None


@pytest.mark.parametrize("wait", [-SECOND, timedelta(days=367), timedelta.max])
def test_a_block_that_is_too_long_is_refused_with_its_remedy(wait: timedelta) -> None:
    key("api")
    with pytest.raises(PolicyInvalid, match=r"^wait: .* from 0 to 366 days; to stop a key for longer, pause it"):
        api.block("api", wait)
    assert RateLimitKey.objects.get().blocked_until is None


def test_an_override_keeps_the_limits_that_it_does_not_name() -> None:
    row = key("api", concurrency=7, rate=(5, 60), throttle=(3, 1))
    api.override("api", until=at(60), rate=None, throttle={"limit": 9, "period": "PT1S"})
    row.refresh_from_db()
    assert (row.override_until, row.override_concurrency) == (at(60), 7)
    assert (row.override_rate_limit, row.override_rate_period) == (None, None)
    assert (row.override_throttle_limit, row.override_throttle_period) == (9, SECOND)
    assert (row.concurrency, row.rate_limit, row.throttle_limit) == (7, 5, 3)


def test_an_override_lets_in_those_who_wait_and_its_end_stops_the_next() -> None:
    key("api", concurrency=1)
    calls = [waiting("api") for _ in range(4)]
    go(*calls)
    api.override("api", until=at(60), concurrency=3)
    assert states(calls) == [State.DISPATCHED] * 3 + [State.AVAILABLE]
    api.end_override("api")
    row = RateLimitKey.objects.get()
    assert (row.override_until, row.override_concurrency, row.concurrency) == (None, None, 1)
    finish.put_back(calls[0].id, ticket_of(seen(calls[0])), from_states=[State.DISPATCHED])
    assert go(*calls) == []


def test_the_end_of_an_override_lets_in_those_whom_it_stopped() -> None:
    key("api", concurrency=5)
    api.override("api", until=at(60), concurrency=0)
    call = waiting("api")
    assert go(call) == []
    api.end_override("api")
    assert states([call]) == [State.DISPATCHED]
    api.end_override("api")


# Cancel


def test_calls_that_have_not_started_are_cancelled_wherever_they_wait() -> None:
    key("api")
    failed = started("api")
    finish.fail(failed.id, ticket_of(failed), error=ValueError(), attempt=1, policy=None)
    calls = [waiting(), waiting(scheduled_at=at(60)), admitted("api"), failed]
    pending = waiting()
    CallQueue.objects.filter(id=pending.id).update(state=State.PENDING)
    calls.append(pending)
    assert api.cancel([*(call.id for call in calls), uuid4()]) == sorted(call.id for call in calls)
    for call in calls:
        stored = seen(call)
        assert (stored.state, stored.ticket) == (State.CANCELLED, None)
        assert stored.finished_at is not None
    assert not Slot.objects.exists()


def test_calls_that_run_or_have_ended_are_not_cancelled() -> None:
    calls = [started(), ended(State.COMPLETED), ended(State.DISCARDED), ended(State.CANCELLED)]
    before = list(CallQueue.objects.order_by("id").values())
    assert api.cancel(call.id for call in calls) == []
    assert list(CallQueue.objects.order_by("id").values()) == before
    assert slots_of(calls[0]) == {None: 1}


def test_the_room_of_a_cancelled_call_goes_to_those_who_wait() -> None:
    key("api", concurrency=1)
    first, second = admitted("api"), waiting("api")
    go(second)
    assert api.cancel([first.id]) == [first.id]
    assert states([second]) == [State.DISPATCHED]


def test_a_cancelled_call_that_stood_in_the_way_lets_those_behind_it_go() -> None:
    key("api", concurrency=3)
    running, dear, cheap = admitted(costs={"api": 2}), waiting(costs={"api": 3}), waiting("api")
    assert go(dear) == []
    api.cancel([dear.id])
    assert states([running, cheap]) == [State.DISPATCHED, State.DISPATCHED]


def test_a_message_of_a_cancelled_call_does_nothing() -> None:
    call = admitted()
    api.cancel([call.id])
    assert engine.execute(call.id, ticket_of(call), lambda: 1) is Refused.STALE
    assert states([call]) == [State.CANCELLED]


# Retry


@pytest.mark.parametrize("state", [State.COMPLETED, State.DISCARDED, State.CANCELLED])
def test_an_ended_call_waits_again_from_the_beginning(state: State) -> None:
    api.pause(key("queue:celery").name)
    control.resume("queue:celery")
    call = ended(state)
    api.pause("queue:celery")
    CallQueue.objects.filter(id=call.id).update(expires_at=at(-60), scheduled_at=at(-90))
    assert api.retry([call.id, uuid4()]) == [call.id]
    stored = seen(call)
    assert (stored.state, stored.attempt, stored.ticket) == (State.AVAILABLE, 0, None)
    assert (stored.started_at, stored.finished_at, stored.dispatched_at, stored.published_at) == (None,) * 4
    assert (stored.expires_at, stored.scheduled_at, stored.result) == (None, None, None)
    assert stored.errors == call.errors
    assert (stored.position, stored.lane_id, stored.args) == (call.position, call.lane_id, call.args)


def test_a_retried_call_goes_at_once_and_has_all_its_attempts() -> None:
    call = ended(State.DISCARDED)
    api.retry([call.id])
    assert states([call]) == [State.DISPATCHED]
    engine.execute(call.id, ticket_of(seen(call)), lambda: 7)
    stored = seen(call)
    assert (stored.state, stored.result, stored.attempt, len(stored.errors)) == (State.COMPLETED, 7, 1, 1)


def test_a_call_that_has_not_ended_is_not_retried() -> None:
    calls = [waiting(), waiting(scheduled_at=at(60)), admitted(queue="b"), started(queue="c")]
    before = list(CallQueue.objects.order_by("id").values())
    assert api.retry(call.id for call in calls) == []
    assert list(CallQueue.objects.order_by("id").values()) == before


# Run now


def test_a_call_that_is_to_run_now_goes_first_in_its_lane() -> None:
    key("api", concurrency=1)
    running = admitted("api")
    calls = [waiting("api") for _ in range(4)]
    go(*calls)
    assert api.run_now([calls[2].id]) == [calls[2].id]
    assert api.run_now([calls[3].id]) == [calls[3].id]
    api.limit("api", {})
    order = CallQueue.objects.exclude(id=running.id).order_by("position").values_list("id", flat=True)
    assert list(order) == [calls[number].id for number in (3, 2, 0, 1)]


def test_several_that_are_to_run_now_keep_their_order() -> None:
    key("api", concurrency=0)
    calls = [waiting("api") for _ in range(4)]
    assert set(api.run_now([calls[3].id, calls[1].id])) == {calls[1].id, calls[3].id}
    assert go(*calls) == []
    control.limit("api", {})
    assert go(*calls) == [calls[number].id for number in (1, 3, 0, 2)]


@pytest.mark.parametrize("state", [State.SCHEDULED, State.RETRYABLE, State.PENDING])
def test_a_call_that_waits_for_its_time_runs_now(state: State) -> None:
    call = started() if state is State.RETRYABLE else waiting(scheduled_at=at(60))
    if state is State.RETRYABLE:
        finish.fail(call.id, ticket_of(call), error=ValueError(), attempt=1, policy=None, wait=timedelta(hours=1))
    CallQueue.objects.filter(id=call.id).update(state=state)
    assert api.run_now([call.id]) == [call.id]
    assert states([call]) == [State.DISPATCHED]


def test_a_call_that_is_to_run_now_still_keeps_to_its_limits() -> None:
    row = key("api", concurrency=1)
    started("api")
    call = waiting("api", scheduled_at=at(60))
    assert api.run_now([call.id]) == [call.id]
    assert states([call]) == [State.AVAILABLE]
    assert lane_of(call).parked_on_id == row.id


def test_a_call_in_flight_or_ended_can_not_run_now() -> None:
    calls = [admitted(), started(), ended(State.COMPLETED)]
    before = list(CallQueue.objects.order_by("id").values())
    assert api.run_now([*(call.id for call in calls), uuid4()]) == []
    assert list(CallQueue.objects.order_by("id").values()) == before


def test_nothing_is_done_to_nothing() -> None:
    assert (api.cancel([]), api.retry([]), api.run_now([])) == ([], [], [])


# The ramp after a block


def test_after_a_block_calls_start_step_by_step(settings: Any) -> None:
    settings.DISPATCHER = {"ramp": 8}
    key("api")
    calls = [waiting("api") for _ in range(20)]
    control.block(SECOND, names=["api"], now=at(-1))
    admitted_by = []
    for seconds in (0, 0.5, 1, 2, 3, 3.5):
        go(*calls, now=at(seconds))
        admitted_by.append(CallQueue.objects.filter(state=State.DISPATCHED).count())
    assert admitted_by == [1, 1, 2, 4, 8, 8]
    assert RateLimitKey.objects.get().opens_at == at(4)
    go(*calls, now=at(8))
    assert CallQueue.objects.filter(state=State.DISPATCHED).count() == 20


# Arguments that people get wrong


def test_calls_are_named_by_themselves_by_their_ids_or_by_a_query() -> None:
    for verb in (api.cancel, api.retry):
        one, two, three, four = (waiting() for _ in range(4))
        if verb is api.retry:
            api.cancel([one, two, three, four])
        assert verb(one) == [one.id]
        assert verb(two.id) == [two.id]
        assert verb(str(three.id)) == [three.id]
        assert verb(CallQueue.objects.filter(id=four.id)) == [four.id]


@pytest.mark.parametrize("verb", [api.cancel, api.retry, api.activate, api.run_now])
@pytest.mark.parametrize("wrong", ["abc", 5, [5], None, [None], {"id": 1}, b"0"], ids=str)
def test_what_is_no_call_is_refused_with_what_to_give(verb: Callable[[Any], Any], wrong: Any) -> None:
    with pytest.raises(CallInvalid, match=r"^calls: .* is no call; give a call, its id, or a list of these"):
        verb(wrong)


@pytest.mark.parametrize("wait", [60, 60.0, "PT1M", timedelta(minutes=1)], ids=str)
def test_a_block_takes_seconds(wait: Any) -> None:
    row = key("api")
    api.block("api", wait)
    row.refresh_from_db()
    assert timedelta(seconds=50) < row.blocked_until - timezone.now() < timedelta(seconds=70)


@pytest.mark.parametrize("wait", ["soon", None, -1, float("nan")], ids=str)
def test_a_block_for_no_time_is_refused_by_its_field(wait: Any) -> None:
    key("api")
    with pytest.raises(PolicyInvalid, match=r"^wait: "):
        api.block("api", wait)


def test_an_override_that_has_ended_before_it_began_is_refused() -> None:
    key("api")
    with pytest.raises(PolicyInvalid, match=r"^until: .* is past .* give a time to come"):
        api.override("api", until=timezone.now() - SECOND, concurrency=1)


@pytest.mark.parametrize("name", ["concurency", "rates"])
def test_a_limit_that_is_misspelt_is_refused_with_the_one_that_was_meant(name: str) -> None:
    with pytest.raises(PolicyInvalid, match=rf"^{name}: is not known here; did you mean (concurrency|rate)\?"):
        RateLimitKey.objects.declare("api", **{name: 1})
    assert not RateLimitKey.objects.exists()


@pytest.mark.parametrize(("text", "period"), [("100/s", 1), ("100/m", 60), ("100/h", 3600)])
def test_a_rate_may_be_given_as_celery_writes_it(text: str, period: int) -> None:
    made = RateLimitKey.objects.declare("api", rate=text, throttle=text)
    assert (made.rate_limit, made.rate_period) == (100, timedelta(seconds=period))
    assert (made.throttle_limit, made.throttle_period) == (100, timedelta(seconds=period))


@pytest.mark.parametrize("text", ["100", "100/x", "m", "1.5/s", "100/m "])
def test_a_rate_that_celery_would_not_write_is_refused_with_its_notation(text: str) -> None:
    with pytest.raises(PolicyInvalid, match=r'^policy\.rate: .* or "100/m"'):
        RateLimitKey.objects.declare("api", rate=text)
