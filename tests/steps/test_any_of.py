"""Any of several budgets: what is refused, reported, and named in messages. What starts is in tests/behaviour."""

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import api
from dispatcher.api import any_of
from dispatcher.audit import audit
from dispatcher.errors import CallInvalid, ConfigurationError
from dispatcher.lifecycle import publish
from dispatcher.models import CallQueue, Slot
from tests.builders import (
    at,
    committed,
    go,
    key,
    seen,
    waiting,
)
from tests.steps.conftest import Broker

pytestmark = committed

EGRESS = any_of("egress:*")


@pytest.mark.parametrize("pattern", ["", "*", "egress", "egress:*:x", "eg*ress*", ":*", "a b*", 3, "queue:*", "qu*"])
def test_a_bad_pattern_is_refused(pattern: Any) -> None:
    with pytest.raises(CallInvalid, match="any_of"):
        any_of(pattern)


def test_a_pattern_without_any_of_is_refused() -> None:
    with pytest.raises(CallInvalid, match=r"give any_of\('egress:\*'\)"):
        CallQueue.objects.send("noop", keys=["egress:*"])


def found() -> list[str]:
    return [each.check.name for each in audit(settle=timedelta(0)).found if each.count]


def test_the_audit_finds_calls_without_the_slot_of_their_member() -> None:
    key("egress:1", concurrency=1)
    first, second = waiting(EGRESS), waiting(EGRESS)
    assert go(first, second) == [first.id]
    assert found() == []
    Slot.objects.filter(key__name="egress:1").delete()
    assert found() == ["wrong_slots", "unserved"]


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
