"""Groups at the edges: over HTTP, in the status, in the admin, and in the audit."""

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.test import Client

from dispatcher import api as dispatcher_api
from dispatcher import reports
from dispatcher.api import any_of
from dispatcher.models import CallQueue, RateLimitKey
from tests.edges.auditing import found
from tests.edges.pages import post, read, url_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]

PATTERN = "egress:*"
EGRESS = any_of(PATTERN)


@pytest.fixture(autouse=True)
def _two_members() -> None:
    RateLimitKey.objects.all().delete()
    for name in ("egress:1", "egress:2"):
        RateLimitKey.objects.declare(name, concurrency=1)


def send(count: int = 1, **fields: Any) -> list[CallQueue]:
    return [CallQueue.objects.send("noop", keys=[EGRESS], **fields) for _ in range(count)]


def status_of(name: str) -> dict[str, Any]:
    out = io.StringIO()
    call_command("rate_limit_status", "--key", name, "--json", stdout=out)
    return dict(json.loads(out.getvalue())["items"][0])


# In the status


@pytest.mark.parametrize(
    ("sent", "state", "stopped_by", "is_open", "waiting"), [(1, "open", [], 1, 0), (3, "at_limit", ["members"], 0, 1)]
)
def test_a_group_is_open_while_one_of_its_members_has_room(
    sent: int, state: str, stopped_by: list[str], is_open: int, waiting: int
) -> None:
    send(sent)
    shown = status_of(PATTERN)
    assert (shown["state"], shown["stopped_by"], shown["members"]) == (state, stopped_by, {"total": 2, "open": is_open})
    assert (shown["active"], shown["waiting_count"], shown["opens_at"]) == (sent - waiting, waiting, None)
    assert status_of("egress:1")["members"] is None
    by_name = {status.name: status for status in reports.rate_limit_status()}
    assert by_name[PATTERN].members == reports.status.Members(total=2, open=is_open)


def test_a_group_opens_with_the_first_of_its_members() -> None:
    dispatcher_api.block("egress:1", timedelta(hours=2))
    dispatcher_api.block("egress:2", timedelta(hours=1))
    send(1)
    assert status_of(PATTERN)["opens_at"] == status_of("egress:2")["blocked_until"]


# In the admin


def test_a_call_s_page_says_which_key_was_chosen_and_why_one_waits(boss: Client) -> None:
    first, _, waits = send(3)
    assert "1 of egress:* (egress:1)" in read(boss, first)
    assert "egress:* stops its lane: none of the 2 keys that match has room" in read(boss, waits)


def test_a_call_s_page_says_that_no_key_matches(boss: Client) -> None:
    for name in ("egress:1", "egress:2"):
        dispatcher_api.pause(name)
    (call,) = send(1)
    RateLimitKey.objects.filter(is_group=False).delete()
    assert "No key matches egress:*: declare one, or cancel the call" in read(boss, call)


def test_a_group_has_a_page_that_says_how_many_of_its_members_have_room_and_no_form_makes_one(boss: Client) -> None:
    RateLimitKey.objects.declare("egress:3", concurrency=1)
    dispatcher_api.pause("egress:1")
    send(1)
    assert "3, of which 1 have room" in read(boss, RateLimitKey.objects.get(name=PATTERN))
    assert "is not a key name" in post(boss, url_of("ratelimitkey", "add"), name="other:*")


# In the audit


def test_the_audit_finds_a_group_that_nothing_will_open_and_repairs_it() -> None:
    _, _, call = send(3)
    assert found() == []
    RateLimitKey.objects.filter(name="egress:2").update(concurrency=2)
    assert found() == ["unserved_parked"]
    assert found(repair=True) == []
    call.refresh_from_db()
    assert call.chosen_keys == {PATTERN: "egress:2"}
