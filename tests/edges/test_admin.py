"""The admin: pages that show how calls and keys stand, actions with permissions of their own."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from pytest_django import Settings

from dispatcher import api, engine
from dispatcher.admin.base import MANY, batches
from dispatcher.engine import workers
from dispatcher.lifecycle import heartbeat
from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import HERE, ticket_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.pooler, pytest.mark.django]

CALLS = reverse("admin:dispatcher_callqueue_changelist")
KEYS = reverse("admin:dispatcher_ratelimitkey_changelist")


@pytest.fixture
def clerk() -> Callable[..., Client]:
    """Log in somebody who may look, and do what is named."""

    def log_in(*permissions: str) -> Client:
        user = User.objects.create_user(f"clerk-{uuid4()}", is_staff=True)
        named = {"view_callqueue", "view_ratelimitkey", *permissions}
        user.user_permissions.set(Permission.objects.filter(codename__in=named))
        client = Client()
        client.force_login(user)
        return client

    return log_in


def waiting(number: int) -> list[CallQueue]:
    """Return so many calls that wait for a paused key."""
    RateLimitKey.objects.declare("api", concurrency=0)
    return [CallQueue.objects.send("t", args=[n], keys=["api"]) for n in range(number)]


def act(client: Client, url: str, action: str, rows: list[object], **more: object) -> str:
    data = {"action": action, "_selected_action": [row.pk for row in rows], **more}
    return client.post(url, data, follow=True).content.decode()


def test_a_call_s_page_says_why_it_waits_and_what_it_spends(boss: Client) -> None:
    (call,) = waiting(1)
    page = boss.get(reverse("admin:dispatcher_callqueue_change", args=[call.pk])).content.decode()
    assert "The key api stops its lane" in page
    assert "1 of api" in page
    assert "Waiting" in page


@pytest.mark.parametrize(("failures", "title"), [(3, "3 in total"), (5_000, "the first 5 and the last 20 are kept")])
def test_a_call_s_page_says_how_many_errors_there_were(boss: Client, failures: int, title: str) -> None:
    (call,) = waiting(1)
    kept = [{"type": "ValueError", "message": "no money", "attempt": number} for number in range(min(failures, 25))]
    CallQueue.objects.filter(pk=call.pk).update(errors=kept, error_count=failures)
    page = boss.get(reverse("admin:dispatcher_callqueue_change", args=[call.pk])).content.decode()
    assert f"{failures:,} in total" in page
    assert title in page


def test_a_call_s_page_says_that_no_worker_knows_its_task(boss: Client) -> None:
    heartbeat.record(replace(HERE, tasks=["other"]), [])
    call = CallQueue.objects.send("t")
    workers.return_unknown(call.pk, ticket_of(CallQueue.objects.get(pk=call.pk)))
    page = boss.get(reverse("admin:dispatcher_callqueue_change", args=[call.pk])).content.decode()
    assert "No live worker of queue celery has the task t." in page


def test_a_call_s_page_says_that_it_never_starts(boss: Client) -> None:
    heartbeat.record(replace(HERE, tasks=["t"]), [])
    call = CallQueue.objects.send("t")
    for _ in range(3):
        engine.lose(call.pk, ticket_of(CallQueue.objects.get(pk=call.pk)), RuntimeError("exit 9"), is_crash=True)
    page = boss.get(reverse("admin:dispatcher_callqueue_change", args=[call.pk])).content.decode()
    assert "came back without a start 3 times" in page


def test_a_key_s_page_names_states_as_the_list_of_calls_does(boss: Client) -> None:
    (call,) = waiting(1)
    url = reverse("admin:dispatcher_ratelimitkey_change", args=[RateLimitKey.objects.get(name="api").pk])
    page = boss.get(url).content.decode()
    assert f'title="{call.pk}">…{str(call.pk)[-12:]}</a>' in page
    assert f"<td>{State.AVAILABLE.label}</td>" in page


@pytest.mark.parametrize("state", list(State))
def test_calls_are_listed_by_state(boss: Client, state: State) -> None:
    (call,) = waiting(1)
    page = boss.get(CALLS, {"state": state.value}).content.decode()
    assert (str(call.pk) in page) == (state is State.AVAILABLE)


def test_calls_are_found_by_id_by_key_and_by_task(boss: Client) -> None:
    (call,) = waiting(1)
    other = CallQueue.objects.send("other.task")
    for term in (str(call.pk), "api"):
        page = boss.get(CALLS, {"q": term}).content.decode()
        assert str(call.pk) in page
        assert str(other.pk) not in page
    assert str(other.pk) in boss.get(CALLS, {"q": "other"}).content.decode()


def test_calls_that_wait_for_a_queue_are_found_by_its_key(boss: Client) -> None:
    RateLimitKey.objects.declare("queue:mail", concurrency=0)
    call = CallQueue.objects.send("t", queue="mail")
    other = CallQueue.objects.send("t", queue="others")
    page = boss.get(CALLS, {"q": "queue:mail"}).content.decode()
    assert (str(call.pk) in page, str(other.pk) in page) == (True, False)


def test_a_call_that_has_no_lane_yet_is_found_by_its_keys_and_says_why_it_waits(boss: Client) -> None:
    RateLimitKey.objects.declare("api")
    RateLimitKey.objects.declare("queue:mail")
    with transaction.atomic():
        call = CallQueue.objects.send("t", keys=["api"], queue="mail")
        connection.run_on_commit.clear()
    for term in ("api", "queue:mail"):
        assert str(call.pk) in boss.get(CALLS, {"q": term}).content.decode()
    page = boss.get(reverse("admin:dispatcher_callqueue_change", args=[call.pk])).content.decode()
    assert "Its lane does not exist yet" in page
    assert "1 of api, 1 of queue:mail" in page


def test_until_when_a_key_is_blocked_is_shown_in_the_zone_of_who_looks(boss: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    key = RateLimitKey.objects.declare("api")
    RateLimitKey.objects.filter(pk=key.pk).update(blocked_until=datetime(2040, 5, 1, 20, 30, tzinfo=UTC))
    assert "until 2040-05-02 05:30:00" in boss.get(KEYS).content.decode()


def test_no_page_counts_a_table_to_its_end(boss: Client) -> None:
    waiting(1)
    for url in (CALLS, KEYS):
        with CaptureQueriesContext(
            connection,
        ) as queries:
            assert boss.get(url).status_code == 200
        counts = [query["sql"] for query in queries if "COUNT(" in query["sql"] and "dispatcher_" in query["sql"]]
        assert counts
        assert all(f"LIMIT {MANY}" in count for count in counts)


def changelist(name: str) -> str:
    return reverse(f"admin:dispatcher_{name}_changelist")


LISTS = ["callqueue", "ratelimitkey", "queue", "worker"]


@pytest.mark.parametrize("name", LISTS)
def test_a_list_counts_up_to_a_bound_and_sorts_by_no_column(boss: Client, name: str) -> None:
    orders = []
    for query in ("", "?o=-1", "?o=2.-3"):
        with CaptureQueriesContext(connection) as queries:
            page = boss.get(changelist(name) + query).content.decode()
        asked = [each["sql"] for each in queries if f'FROM "dispatcher_{name}"' in each["sql"]]
        assert all(f"LIMIT {MANY}" in each for each in asked if "COUNT(" in each)
        orders.append([each.partition("ORDER BY")[2] for each in asked])
        assert "sortable" not in page
    assert orders[0] == orders[1] == orders[2]


def fill(number: int) -> None:
    """Add so many rows to each table that the admin lists."""
    calls = CallQueue.objects.send_many([Call(task="t", queue=f"queue-{n}") for n in range(number)])
    api.cancel([call.pk for call in calls[::2]])
    for n in range(number):
        name = uuid4().hex
        RateLimitKey.objects.declare(f"key:{name}", concurrency=n)
        Queue.objects.create(name=name)
        heartbeat.record(replace(HERE, id=uuid4(), name=name, queues=["a"], tasks=["t"]), [])


@pytest.mark.parametrize("name", [*LISTS, "callqueue/?state=available", "callqueue/?q=t"])
def test_a_list_takes_as_many_queries_for_many_rows_as_for_a_few(boss: Client, name: str) -> None:
    counts = []
    for number in (2, 12):
        fill(number)
        boss.get(f"/admin/dispatcher/{name}", follow=True)
        with CaptureQueriesContext(connection) as queries:
            assert boss.get(f"/admin/dispatcher/{name}", follow=True).status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("state", [State.COMPLETED, State.CANCELLED, State.DISCARDED])
def test_calls_that_ended_are_listed_by_their_end(boss: Client, state: State) -> None:
    calls = [CallQueue.objects.send("t") for _ in range(3)]
    for call, minutes in zip(calls, (2, 3, 1), strict=True):
        CallQueue.objects.filter(pk=call.pk).update(
            state=state,
            ticket=None,
            reason="failed" if state is State.DISCARDED else None,
            finished_at=datetime(2030, 1, 1, 0, minutes, tzinfo=UTC),
        )
    queries = [{"state": state.value}, *([{"reason": "failed"}] if state is State.DISCARDED else [])]
    for query in queries:
        found = boss.get(CALLS, query).context["cl"].result_list
        assert [call.pk for call in found] == [calls[1].pk, calls[0].pk, calls[2].pk]
    assert not boss.get(CALLS, {"state": "available", "reason": "failed"}).context["cl"].result_list


def test_calls_that_wait_alone_are_listed_by_themselves(boss: Client) -> None:
    _, call = dear_call()
    api.limit("api", {"concurrency": 5})
    api.resume("api")
    assert CallQueue.objects.get(pk=call.pk).oversized_key_id is not None
    assert str(call.pk) in boss.get(CALLS, {"state": "oversized"}).content.decode()
    assert str(call.pk) not in boss.get(CALLS, {"state": "available"}).content.decode()


def test_a_search_by_task_looks_through_the_newest_calls(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.admin.calls.MANY", 3)
    old, *_ = [CallQueue.objects.send("other.task") for _ in range(4)]
    found = boss.get(CALLS, {"q": "other"}).context["cl"].result_list
    assert len(found) == 3
    assert old not in found


def test_calls_can_be_neither_made_nor_edited_nor_deleted(boss: Client) -> None:
    (call,) = waiting(1)
    assert boss.get(reverse("admin:dispatcher_callqueue_add")).status_code == 403
    assert boss.post(reverse("admin:dispatcher_callqueue_change", args=[call.pk]), {"task": "x"}).status_code == 403
    assert boss.get(reverse("admin:dispatcher_callqueue_delete", args=[call.pk])).status_code == 403


def test_calls_are_cancelled_retried_and_run(clerk: Callable[..., Client]) -> None:
    calls = waiting(3)
    client = clerk("cancel_callqueue", "retry_callqueue", "run_callqueue")
    assert "3 calls: cancelled" in act(client, CALLS, "cancel", calls)
    assert {call.state for call in CallQueue.objects.all()} == {State.CANCELLED}
    assert "they run or have ended" in act(client, CALLS, "cancel", calls)
    assert "3 calls: queued for a retry" in act(client, CALLS, "retry", calls)
    assert "1 calls: moved to the front" in act(client, CALLS, "run_now", calls[2:])
    assert CallQueue.objects.waiting().order_by("position").first() == calls[2]
    assert LogEntry.objects.count() == 4


@pytest.mark.parametrize("action", ["cancel", "retry", "run_now"])
def test_nothing_is_done_to_calls_without_the_permission(clerk: Callable[..., Client], action: str) -> None:
    (call,) = waiting(1)
    others = {"cancel": "cancel_callqueue", "retry": "retry_callqueue", "run_now": "run_callqueue"}
    client = clerk(*(permission for name, permission in others.items() if name != action))
    before = CallQueue.objects.values().get()
    act(client, CALLS, action, [call])
    assert CallQueue.objects.values().get() == before


def test_an_action_on_all_goes_batch_by_batch() -> None:
    waiting(5)
    ids = [pk for batch in batches(CallQueue.objects.all()) for pk in batch]
    assert sorted(ids) == sorted(CallQueue.objects.values_list("pk", flat=True))


def test_keys_are_paused_and_resumed(clerk: Callable[..., Client]) -> None:
    key = RateLimitKey.objects.declare("api", concurrency=1)
    client = clerk("pause_ratelimitkey")
    assert "1 key: paused" in act(client, KEYS, "pause", [key])
    assert "Paused" in client.get(KEYS).content.decode()
    call = CallQueue.objects.send("t", keys=["api"])
    assert call.state == State.AVAILABLE
    act(client, KEYS, "resume", [key])
    call.refresh_from_db()
    assert call.state == State.DISPATCHED
    assert LogEntry.objects.filter(object_id=str(key.pk)).count() == 2


def test_a_key_is_overridden_until_a_time(clerk: Callable[..., Client]) -> None:
    (call,) = waiting(1)
    key = RateLimitKey.objects.get(name="api")
    client = clerk("override_ratelimitkey")
    assert "Override until" in act(client, KEYS, "override", [key])
    until = timezone.now() + timedelta(hours=1)
    when = {"until_0": until.strftime("%Y-%m-%d"), "until_1": until.strftime("%H:%M:%S")}
    refused = act(client, KEYS, "override", [key], apply="1", rate_limit="5", **when)
    assert "Give both the limit and its period, or neither." in refused
    past = act(client, KEYS, "override", [key], apply="1", until_0="2001-01-01", until_1="00:00:00")
    assert "Give a time to come." in past
    ever = act(client, KEYS, "override", [key], apply="1", until_0="9999-12-31", until_1="23:59:59")
    assert "give a time from 0001-01-02 to 9999-12-30" in ever
    assert "overridden to" in act(client, KEYS, "override", [key], apply="1", concurrency="1", **when)
    call.refresh_from_db()
    assert call.state == State.DISPATCHED
    act(client, KEYS, "end_override", [key])
    key.refresh_from_db()
    assert key.override_until is None


@pytest.mark.parametrize("action", ["pause", "resume", "override", "end_override"])
def test_nothing_is_done_to_keys_without_the_permission(clerk: Callable[..., Client], action: str) -> None:
    key = RateLimitKey.objects.declare("api", concurrency=1)
    wrong = "override_ratelimitkey" if action in {"pause", "resume"} else "pause_ratelimitkey"
    before = RateLimitKey.objects.values().get(name="api")
    act(clerk(wrong), KEYS, action, [key], apply="1")
    assert RateLimitKey.objects.values().get(name="api") == before


def dear_call() -> tuple[RateLimitKey, CallQueue]:
    """Return a paused key, and a call that waits for 8 of it."""
    key = RateLimitKey.objects.declare("api", concurrency=10)
    api.pause("api")
    (call,) = CallQueue.objects.send_many([Call(task="noop", keys={"api": 8})])
    return key, call


def test_limits_that_waiting_calls_never_fit_are_stored_only_when_that_is_accepted(boss: Client) -> None:
    key, call = dear_call()
    url = reverse("admin:dispatcher_ratelimitkey_change", args=[key.pk])
    page = boss.post(url, {"concurrency": "5"}).content.decode()
    assert "1 waiting calls cost more than these limits ever allow" in page
    assert RateLimitKey.objects.get(name="api").concurrency == 10
    page = boss.post(url, {"concurrency": "5", "accept_oversized": "on"}, follow=True).content.decode()
    assert "1 waiting calls cost more than the limits ever allow" in page
    assert RateLimitKey.objects.get(name="api").concurrency == 5
    api.resume("api")
    assert "1 of these cost more than the limits ever allow" in boss.get(url).content.decode()
    page = boss.get(reverse("admin:dispatcher_callqueue_change", args=[call.pk])).content.decode()
    assert "It costs 8 of the key api, whose limits never allow it." in page
    assert str(call.pk) in boss.get(reverse("admin:dispatcher_callqueue_changelist"), {"q": "api"}).content.decode()


def test_an_override_that_waiting_calls_never_fit_must_be_accepted(clerk: Callable[..., Client]) -> None:
    key, _ = dear_call()
    client, when = clerk("override_ratelimitkey"), {"until_0": "2099-01-01", "until_1": "00:00:00"}
    refused = act(client, KEYS, "override", [key], apply="1", concurrency="5", **when)
    assert "1 waiting calls cost more than these limits ever allow" in refused
    assert RateLimitKey.objects.get(name="api").override_until is None
    done = act(client, KEYS, "override", [key], apply="1", concurrency="5", accept_oversized="on", **when)
    assert "1 waiting calls cost more than the limits ever allow" in done
    assert RateLimitKey.objects.get(name="api").override_concurrency == 5


def test_new_limits_let_in_what_waits(boss: Client) -> None:
    (call,) = waiting(1)
    key = RateLimitKey.objects.get(name="api")
    url = reverse("admin:dispatcher_ratelimitkey_change", args=[key.pk])
    assert str(call.pk) in boss.get(url).content.decode()
    boss.post(url, {"concurrency": "2", "throttle_limit": "10", "throttle_period": "PT1S"})
    key.refresh_from_db()
    assert (key.concurrency, key.throttle_limit, key.throttle_period) == (2, 10, timedelta(seconds=1))
    call.refresh_from_db()
    assert call.state == State.DISPATCHED


def test_a_key_is_made_with_clear_errors(boss: Client) -> None:
    url = reverse("admin:dispatcher_ratelimitkey_add")
    page = boss.post(url, {"name": "api", "rate_limit": "5", "rate_period": "tomorrow"}).content.decode()
    assert "is not a duration" in page
    assert "is not a key name" in boss.post(url, {"name": "no spaces"}).content.decode()
    boss.post(url, {"name": "api", "rate_limit": "5", "rate_period": "minute"})
    assert RateLimitKey.objects.get(name="api").rate_period == timedelta(minutes=1)


def test_keys_are_not_deleted(boss: Client) -> None:
    key = RateLimitKey.objects.declare("api")
    assert boss.get(reverse("admin:dispatcher_ratelimitkey_delete", args=[key.pk])).status_code == 403


def test_an_override_of_several_keys_keeps_what_they_do_not_share(clerk: Callable[..., Client]) -> None:
    one = RateLimitKey.objects.declare("one", concurrency=4, rate=(7, 60))
    other = RateLimitKey.objects.declare("other", concurrency=9, rate=(7, 60))
    client = clerk("override_ratelimitkey")
    form = act(client, KEYS, "override", [one, other])
    assert re.search(r'name="concurrency"[^>]*value=', form) is None
    assert re.search(r'name="rate_limit" value="7"', form)
    when = {"until_0": "2099-01-01", "until_1": "00:00:00"}
    act(client, KEYS, "override", [one, other], apply="1", throttle_limit="3", throttle_period="PT1S", **when)
    stored = {key.name: key for key in RateLimitKey.objects.filter(name__in=["one", "other"])}
    assert [stored[name].override_concurrency for name in ("one", "other")] == [4, 9]
    assert [stored[name].override_throttle_limit for name in ("one", "other")] == [3, 3]
    assert [stored[name].override_rate_limit for name in ("one", "other")] == [None, None]


def test_a_limit_without_its_period_is_named_with_the_remedy(boss: Client) -> None:
    key = RateLimitKey.objects.declare("api")
    for url in (
        reverse("admin:dispatcher_ratelimitkey_change", args=[key.pk]),
        reverse("admin:dispatcher_ratelimitkey_add"),
    ):
        page = boss.post(url, {"name": "new", "throttle_limit": "5"}).content.decode()
        assert "Give both the limit and its period, or neither." in page
        assert "is violated" not in page
