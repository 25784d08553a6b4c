"""Any of several budgets: what is refused, reported, and named in messages. What starts is in tests/behaviour."""

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import api, sql
from dispatcher.api import any_of
from dispatcher.audit import audit
from dispatcher.errors import CallInvalid, ConfigurationError
from dispatcher.lifecycle import publish, recover
from dispatcher.lifecycle.retention import unused
from dispatcher.models import CallQueue, Lane, RateLimitKey, Slot
from tests.builders import (
    T0,
    at,
    committed,
    end,
    erase,
    go,
    key,
    lane_of,
    seen,
    start,
    waiting,
)
from tests.steps.conftest import Broker

pytestmark = committed

EGRESS = any_of("egress:*")


def group(name: str = "egress:*") -> RateLimitKey:
    return RateLimitKey.objects.get(name=name)


def test_a_group_is_declared_with_limits_of_its_own() -> None:
    key("egress:1")
    RateLimitKey.objects.declare(EGRESS, concurrency=1)
    assert len(go(*[waiting(EGRESS) for _ in range(3)])) == 1
    with pytest.raises(CallInvalid, match="give any_of"):
        RateLimitKey.objects.declare("account:*", concurrency=1)


@pytest.fixture
def parked(settings: Any) -> CallQueue:
    """Return a call that waits for one of two members, both of which are full."""
    holders = [waiting(name) for name in (key("egress:1", concurrency=1).name, key("egress:2", concurrency=1).name)]
    assert len(go(*holders)) == 2
    for holder in holders:
        start(holder, now=T0)
    call = waiting(EGRESS)
    assert go(call) == []
    assert lane_of(call).parked_on_id == group().id
    return call


def holder_of(name: str) -> CallQueue:
    return CallQueue.objects.get(slots__key__name=name, state="active")


def test_the_sweep_finds_a_group_whose_member_has_room(parked: CallQueue) -> None:
    def stranded() -> list[int]:
        with sql.together():
            asked = recover.ask_sweep_keys(0, 100)
        return asked.row().stranded

    assert stranded() == []
    end(holder_of("egress:2"))
    assert stranded() == [group().id]


@pytest.mark.parametrize("pattern", ["", "*", "egress", "egress:*:x", "eg*ress*", ":*", "a b*", 3, "queue:*", "qu*"])
def test_a_bad_pattern_is_refused(pattern: Any) -> None:
    with pytest.raises(CallInvalid, match="any_of"):
        any_of(pattern)


def test_a_pattern_without_any_of_is_refused() -> None:
    with pytest.raises(CallInvalid, match=r"give any_of\('egress:\*'\)"):
        CallQueue.objects.send("noop", keys=["egress:*"])


def test_members_that_the_settings_name_are_made(settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"egress:1": {"concurrency": 1}, "egress:2": {"concurrency": 1}, "egress:*": {}}}
    calls = [waiting(EGRESS) for _ in range(3)]
    assert len(go(*calls)) == 2
    assert set(RateLimitKey.objects.values_list("name", flat=True)) == {"egress:1", "egress:2", "egress:*"}


def found() -> list[str]:
    return [each.check.name for each in audit(settle=timedelta(0)).found if each.count]


def test_the_audit_finds_calls_without_the_slot_of_their_member() -> None:
    key("egress:1", concurrency=1)
    first, second = waiting(EGRESS), waiting(EGRESS)
    assert go(first, second) == [first.id]
    assert found() == []
    Slot.objects.filter(key__name="egress:1").delete()
    assert found() == ["wrong_slots", "unserved_parked"]


def test_members_of_a_group_are_not_removed_as_unused(settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"egress:*": {"concurrency": 1}}}
    call = waiting("egress:1")
    erase(call)
    waiting(EGRESS)
    Lane.objects.filter(key_ids__contains=[RateLimitKey.objects.get(name="egress:1").id]).delete()
    assert unused.remove_keys(now=sql.now() + timedelta(days=400)) == 0
    erase(*CallQueue.objects.all())
    Lane.objects.all().delete()
    assert unused.remove_keys(now=sql.now() + timedelta(days=400)) == 1
    assert unused.remove_keys(now=sql.now() + timedelta(days=400)) == 1


# A message


def test_a_message_that_is_published_again_names_the_same_key(broker: Broker) -> None:
    key("egress:1")
    call = waiting(EGRESS)
    assert go(call) == [call.id]
    (again,) = publish.unpublished(now=at(60))
    publish.publish([again], now=at(60))
    (message,) = broker.take()
    assert message.headers["dispatcher_chosen_keys"] == {EGRESS: "egress:1"}


def test_a_call_without_a_group_has_no_such_header(broker: Broker) -> None:
    key("egress:1")
    CallQueue.objects.send("noop", keys=["egress:1"])
    (message,) = broker.take()
    assert "dispatcher_chosen_keys" not in message.headers


def test_outside_of_a_task_there_is_no_current_call() -> None:
    assert api.current_call() is None


def test_the_key_of_a_call_with_several_groups_is_asked_by_its_pattern() -> None:
    for name in ("egress:1", "account:1"):
        key(name)
    call = waiting(EGRESS, any_of("account:*"))
    assert go(call) == [call.id]
    keys = seen(call).chosen_keys or {}
    assert keys == {"egress:*": "egress:1", "account:*": "account:1"}
    with pytest.raises(ConfigurationError, match="several any_of"):
        api.CurrentCall(id=call.id, chosen_keys=keys).key  # noqa: B018 -- reading it raises
