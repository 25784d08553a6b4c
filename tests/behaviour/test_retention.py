"""What has ended is kept for as long as the settings say; keys that templates made go when they are long unused."""

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import api
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import TERMINAL, State
from tests.drive import Drive, ids

DAY = 86_400


@pytest.fixture(autouse=True)
def _templates(settings: Any, drive: Drive) -> None:
    settings.DISPATCHER = {
        "keys": {
            "tenant:*": {"concurrency": 2},
            "tenant:named": {"concurrency": 2},
            "slow:*": {"throttle": (1, 50 * DAY)},
            "rare:*": {"rate": (5, 50 * DAY)},
            "queue:ma*": {"concurrency": 9},
        }
    }


def names() -> set[str]:
    """Return the keys that there are, but for that of the queue."""
    return set(RateLimitKey.objects.exclude(name="queue:mail").values_list("name", flat=True))


# Calls


def ended(drive: Drive, state: State) -> CallQueue:
    call = drive.send(retry={"max_attempts": 1})
    if state is State.CANCELLED:
        api.cancel(call)
    else:
        (run,) = drive.take()
        drive.end(run, error=ValueError() if state is State.DISCARDED else None)
    assert drive.state(call) is state
    return call


def test_every_ended_state_has_a_retention_of_its_own(drive: Drive) -> None:
    completed, cancelled, discarded = (
        ended(drive, state) for state in (State.COMPLETED, State.CANCELLED, State.DISCARDED)
    )
    drive.clock.forward(7 * DAY)
    assert (drive.cleanup(), CallQueue.objects.count()) == (0, 3)
    drive.clock.forward(1)
    assert drive.cleanup() == 2
    assert [*CallQueue.objects.all()] == [discarded]
    assert {completed.id, cancelled.id}.isdisjoint(ids(CallQueue.objects.all()))
    drive.clock.forward(23 * DAY)
    assert (drive.cleanup(), CallQueue.objects.count()) == (1, 0)


def test_the_settings_change_the_retention_of_the_states_that_they_name(drive: Drive, settings: Any) -> None:
    settings.DISPATCHER = {"retention": {"completed": timedelta(hours=1), "discarded": None}}
    _, cancelled, discarded = (ended(drive, state) for state in (State.COMPLETED, State.CANCELLED, State.DISCARDED))
    drive.clock.forward(3_601)
    assert drive.cleanup() == 1
    assert {*CallQueue.objects.all()} == {cancelled, discarded}
    drive.clock.forward(1_000 * DAY)
    assert drive.cleanup() == 1
    assert [*CallQueue.objects.all()] == [discarded]


def test_a_call_that_has_not_ended_is_never_deleted(drive: Drive) -> None:
    drive.key("api", concurrency=1)
    calls = drive.send_many(3, "api", retry={"initial_interval": "P60D", "max_interval": "P60D"})
    (run,) = drive.take()
    drive.end(run, error=ValueError())
    drive.take()
    calls.append(drive.send("api", scheduled_at=drive.at(60 * DAY)))
    assert drive.states(calls) == [State.RETRYABLE, State.ACTIVE, drive.state(calls[2]), State.SCHEDULED]
    drive.clock.forward(50 * DAY)
    assert (drive.cleanup(), CallQueue.objects.count()) == (0, 4)


# Keys that templates made


def test_an_unused_key_goes_after_a_month_and_the_next_call_makes_it_again(drive: Drive) -> None:
    leave(drive)
    drive.clock.forward(29 * DAY)
    drive.cleanup()
    assert names() == {"tenant:a"}
    drive.clock.forward(10 * DAY)
    drive.cleanup()
    # That of a queue is kept: it counts for calls that do not name it.
    assert set(RateLimitKey.objects.values_list("name", flat=True)) == {"queue:mail"}
    calls = drive.send_many(3, "tenant:a")
    assert ids(drive.take(3)) == ids(calls[:2])


def leave(drive: Drive, name: str = "tenant:a") -> str:
    """Leave a key that a template made for a call, which has ended and is deleted; return its name."""
    drive.send(name)
    drive.drain()
    CallQueue.objects.ended().delete()
    return name


def test_a_key_stays_while_there_is_a_call_of_it_whatever_its_state(drive: Drive) -> None:
    drive.key("shut", concurrency=0)
    calls = {State.AVAILABLE: drive.send("tenant:available", "shut"), State.ACTIVE: drive.send("tenant:active")}
    drive.take(2)
    late = drive.at(400 * DAY)
    for state in {*State} - {*calls, State.DISPATCHED}:
        calls[state] = drive.send(f"tenant:{state}", scheduled_at=late)
        is_ended = state in TERMINAL
        reason = "limit" if state is State.DISCARDED else None
        ended = CallQueue.objects.filter(id=calls[state].id)
        ended.update(state=state, finished_at=late if is_ended else None, reason=reason)
    drive.clock.forward(50 * DAY)
    drive.cleanup()
    assert names() == {"shut", *(f"tenant:{state}" for state in calls)}
    assert all(drive.state(call) is state for state, call in calls.items())


def test_a_key_stays_for_each_reason_to_keep_it(drive: Drive) -> None:
    reasons: dict[str, Any] = {
        "named in the settings": lambda: api.declare("tenant:named", {"concurrency": 2}),
        "made for a call with its own limits": lambda: drive.send(rate_limit={"key": "tenant:b", "concurrency": 7}),
        "declared before": lambda: (drive.key("tenant:a", concurrency=2), leave(drive)),
        "declared after": lambda: (leave(drive), drive.key("tenant:a", concurrency=5)),
        "limited": lambda: (leave(drive), drive.limit("tenant:a", concurrency=3)),
        "paused": lambda: (leave(drive), api.pause("tenant:a")),
        "blocked lately": lambda: (leave(drive), api.block("tenant:a", 20 * DAY)),
        "overridden": lambda: (leave(drive), drive.override("tenant:a", seconds=50 * DAY, concurrency=1)),
        "a start that delays the next": lambda: leave(drive, "slow:a"),
        "a start in its window": lambda: leave(drive, "rare:a"),
    }
    for reason, make in reasons.items():
        make()
        drive.drain()
        CallQueue.objects.ended().delete()
        kept = names()
        assert kept, reason
        drive.clock.forward(40 * DAY)
        drive.cleanup()
        assert names() == kept, reason
        RateLimitKey.objects.all().delete()


def test_a_key_that_no_template_would_make_again_stays(drive: Drive, settings: Any) -> None:
    leave(drive)
    settings.DISPATCHER = {}
    drive.clock.forward(40 * DAY)
    drive.cleanup()
    assert names() == {"tenant:a"}


@pytest.mark.parametrize("change", ["resume", "block", "override", "override that ended"])
def test_what_no_longer_lasts_keeps_no_key(drive: Drive, change: str) -> None:
    leave(drive)
    match change:
        case "resume":
            api.pause("tenant:a")
            api.resume("tenant:a")
        case "block":
            api.block("tenant:a", 5 * DAY)
        case "override":
            drive.override("tenant:a", seconds=9 * DAY, concurrency=1)
        case _:
            drive.override("tenant:a", seconds=90 * DAY, concurrency=1)
            api.end_override("tenant:a")
    drive.clock.forward(40 * DAY)
    drive.cleanup()
    assert names() == set()


@pytest.mark.parametrize(("setting", "days", "stays"), [(None, 1_000, True), (timedelta(days=1), 2, False)])
def test_the_setting_is_how_long_unused_keys_are_kept(
    drive: Drive, settings: Any, setting: timedelta | None, days: int, *, stays: bool
) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "unused_retention": setting}
    leave(drive)
    drive.clock.forward(days * DAY)
    drive.cleanup()
    assert bool(names()) is stays
