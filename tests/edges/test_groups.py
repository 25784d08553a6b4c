"""Groups at the edges: over HTTP, in the status, in the admin, and in the audit."""

import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client

from dispatcher import api as dispatcher_api
from dispatcher import reports
from dispatcher.api import any_of
from dispatcher.models import CallQueue, RateLimitKey
from tests.edges.auditing import found

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


def test_a_group_is_open_while_one_of_its_members_has_room() -> None:
    send(1)
    shown = status_of(PATTERN)
    assert (shown["state"], shown["stopped_by"], shown["members"]) == ("open", [], {"total": 2, "open": 1})


def test_a_group_whose_members_are_full_is_at_its_limit() -> None:
    send(3)
    shown = status_of(PATTERN)
    assert (shown["state"], shown["stopped_by"], shown["waiting_count"]) == ("at_limit", ["members"], 1)
    assert (shown["active"], shown["opens_at"]) == (2, None)
    assert status_of("egress:1")["members"] is None


def test_a_group_opens_with_the_first_of_its_members() -> None:
    dispatcher_api.block("egress:1", timedelta(hours=2))
    dispatcher_api.block("egress:2", timedelta(hours=1))
    send(1)
    assert status_of(PATTERN)["opens_at"] == status_of("egress:2")["blocked_until"]


def test_the_status_of_all_keys_has_the_groups() -> None:
    send(1)
    by_name = {status.name: status for status in reports.rate_limit_status()}
    assert by_name[PATTERN].members == reports.status.Members(total=2, open=1)


# In the admin


@pytest.fixture
def boss(client: Client) -> Client:
    client.force_login(get_user_model().objects.create_superuser("boss"))
    return client


def page_of(client: Client, call: CallQueue) -> str:
    return client.get(f"/admin/dispatcher/callqueue/{call.pk}/change/").content.decode()


def test_a_call_s_page_says_which_key_was_chosen_and_why_one_waits(boss: Client) -> None:
    first, _, waits = send(3)
    assert "1 of egress:* (egress:1)" in page_of(boss, first)
    assert "egress:* stops its lane: none of the 2 keys that match has room" in page_of(boss, waits)


def test_a_call_s_page_says_that_no_key_matches(boss: Client) -> None:
    dispatcher_api.pause("egress:1")
    dispatcher_api.pause("egress:2")
    (call,) = send(1)
    RateLimitKey.objects.filter(is_group=False).delete()
    assert "No key matches egress:*: declare one, or cancel the call" in page_of(boss, call)


def test_a_group_has_a_page_and_no_form_makes_one(boss: Client) -> None:
    send(3)
    page = boss.get(f"/admin/dispatcher/ratelimitkey/{RateLimitKey.objects.get(name=PATTERN).pk}/change/")
    assert page.status_code == 200
    refused = boss.post("/admin/dispatcher/ratelimitkey/add/", {"name": "other:*"})
    assert "is not a key name" in refused.content.decode()


# In the audit


def test_the_audit_finds_nothing_wrong_with_groups() -> None:
    send(3)
    assert found() == []


def test_the_audit_finds_a_group_that_nothing_will_open_and_repairs_it() -> None:
    _, _, call = send(3)
    RateLimitKey.objects.filter(name="egress:2").update(concurrency=2)
    assert found() == ["unserved_parked"]
    assert found(repair=True) == []
    call.refresh_from_db()
    assert call.chosen_keys == {PATTERN: "egress:2"}


def test_the_page_of_a_group_says_how_many_of_its_members_have_room() -> None:
    for number in (1, 2, 3):
        RateLimitKey.objects.declare(f"line:{number}", concurrency=1)
    dispatcher_api.pause("line:1")
    CallQueue.objects.send("noop", keys=[any_of("line:*")])
    client = Client()
    client.force_login(get_user_model().objects.create_superuser("page"))
    group = RateLimitKey.objects.get(name="line:*")
    page = client.get(f"/admin/dispatcher/ratelimitkey/{group.pk}/change/").content.decode()
    assert "3, of which 1 have room" in page
