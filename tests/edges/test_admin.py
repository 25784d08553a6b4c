"""The admin: pages that show how calls and keys stand, actions with permissions of their own."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from pytest_django import Settings

from dispatcher import api, engine
from dispatcher.admin.base import batches
from dispatcher.engine import workers
from dispatcher.lifecycle import heartbeat
from dispatcher.models import CallQueue, KeyChange, Queue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import TERMINAL, State
from tests.builders import HERE, held, seen, ticket_of
from tests.edges.pages import CALLS, KEYS, act, assert_bounded, post, read, url_of, url_of_row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.pooler, pytest.mark.django]

FAR = {"until_0": "2099-01-01", "until_1": "00:00:00"}


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
    key = RateLimitKey.objects.declare("api", concurrency=0)
    return [CallQueue.objects.send("t", args=[n], keys=[key.name]) for n in range(number)]


def the_key() -> RateLimitKey:
    return RateLimitKey.objects.get(name="api")


def dear_call() -> tuple[RateLimitKey, CallQueue]:
    """Return a paused key, and a call that waits for 8 of it."""
    key = RateLimitKey.objects.declare("api", concurrency=10)
    api.pause("api")
    (call,) = CallQueue.objects.send_many([Call(task="noop", keys={"api": 8})])
    return key, call


# What the page of a call or key says


def test_a_call_s_page_says_why_it_waits_and_what_it_spends(boss: Client) -> None:
    (call,) = waiting(1)
    page = read(boss, call)
    assert all(words in page for words in ("The key api stops its lane", "1 of api", "Waiting"))
    page = read(boss, the_key())
    assert f'title="{call.pk}">…{str(call.pk)[-12:]}</a>' in page
    assert f"<td>{State.AVAILABLE.label}</td>" in page


@pytest.mark.parametrize(("failures", "title"), [(3, "3 in total"), (5_000, "the first 5 and the last 20 are kept")])
def test_a_call_s_page_says_how_many_errors_there_were(boss: Client, failures: int, title: str) -> None:
    (call,) = waiting(1)
    kept = [{"type": "ValueError", "message": "no money", "attempt": number} for number in range(min(failures, 25))]
    CallQueue.objects.filter(pk=call.pk).update(errors=kept, error_count=failures)
    page = read(boss, call)
    assert f"{failures:,} in total" in page
    assert title in page


def test_a_call_s_page_says_that_no_worker_knows_its_task_or_that_it_never_starts(boss: Client) -> None:
    heartbeat.record(replace(HERE, tasks=["other", "t"]), [])
    unknown, unstarted = CallQueue.objects.send("unknown"), CallQueue.objects.send("t")
    workers.return_unknown(unknown.pk, ticket_of(seen(unknown)))
    assert "No live worker of queue celery has the task unknown." in read(boss, unknown)
    for _ in range(3):
        engine.lose([held(unstarted)], RuntimeError("exit 9"), is_crash=True)
    assert "came back without a start 3 times" in read(boss, unstarted)


def test_until_when_a_key_is_blocked_is_shown_in_the_zone_of_who_looks(boss: Client, settings: Settings) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    key = RateLimitKey.objects.declare("api")
    RateLimitKey.objects.filter(pk=key.pk).update(blocked_until=datetime(2040, 5, 1, 20, 30, tzinfo=UTC))
    assert "until 2040-05-02 05:30:00" in read(boss, KEYS)


def test_without_use_tz_times_are_shown_and_given_in_the_zone_of_the_project(boss: Client, settings: Settings) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, "Europe/Berlin"
    settings.DISPATCHER = {"keys": {"api": {"concurrency": 2}}}
    connection.close()
    key = RateLimitKey.objects.declare("api", concurrency=9)
    act(boss, KEYS, "override", key, apply="1", concurrency="3", until_0="2040-07-01", until_1="14:00:00")
    key.refresh_from_db()
    assert (key.override_until, key.override_concurrency) == (datetime(2040, 7, 1, 12, tzinfo=UTC), 3)
    api.block("api", 60, by="bob")
    api.block("api", 30, by="eve")
    block = KeyChange.objects.get(verb="block")
    assert datetime.fromisoformat(block.after["blocked_until"]) - block.at < timedelta(seconds=61)
    assert "overridden until 2040-07-01 14:00:00" in read(boss, KEYS)
    call_command("dispatcher_limits", "show")
    connection.close()


# Lists


def test_calls_are_found_by_id_by_key_by_task_and_by_the_key_of_their_queue(boss: Client) -> None:
    (call,) = waiting(1)
    RateLimitKey.objects.declare("queue:mail", concurrency=0)
    other, mail = CallQueue.objects.send("other.task"), CallQueue.objects.send("t", queue="mail")
    for term, found in ((str(call.pk), call), ("api", call), ("other", other), ("queue:mail", mail)):
        page = read(boss, CALLS, q=term)
        assert [each for each in (call, other, mail) if str(each.pk) in page] == [found]


def test_a_call_that_has_no_lane_yet_is_found_by_its_keys_and_says_why_it_waits(boss: Client) -> None:
    RateLimitKey.objects.declare("api")
    RateLimitKey.objects.declare("queue:mail")
    with transaction.atomic():
        call = CallQueue.objects.send("t", keys=["api"], queue="mail")
        connection.run_on_commit.clear()
    assert all(str(call.pk) in read(boss, CALLS, q=term) for term in ("api", "queue:mail"))
    page = read(boss, call)
    assert "Its lane does not exist yet" in page
    assert "1 of api, 1 of queue:mail" in page


LISTS = ["callqueue", "ratelimitkey", "queue", "worker"]


@pytest.mark.parametrize("name", LISTS)
def test_a_list_counts_up_to_a_bound_and_sorts_by_no_column(boss: Client, name: str) -> None:
    fill(1)
    assert_bounded(boss, url_of(name), f"dispatcher_{name}")


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
        read(boss, f"/admin/dispatcher/{name}")
        with CaptureQueriesContext(connection) as queries:
            assert boss.get(f"/admin/dispatcher/{name}", follow=True).status_code == 200
        counts.append(len(queries))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("state", list(State))
def test_calls_are_listed_by_state(boss: Client, state: State) -> None:
    (call,) = waiting(1)
    assert (str(call.pk) in read(boss, CALLS, state=state.value)) == (state is State.AVAILABLE)


@pytest.mark.parametrize("state", TERMINAL)
def test_calls_that_ended_are_listed_by_their_end(boss: Client, state: State) -> None:
    calls = [CallQueue.objects.send("t") for _ in range(3)]
    reason = "failed" if state is State.DISCARDED else None
    for sent, minutes in zip(calls, (2, 3, 1), strict=True):
        end = datetime(2030, 1, 1, 0, minutes, tzinfo=UTC)
        CallQueue.objects.filter(pk=sent.pk).update(state=state, ticket=None, reason=reason, finished_at=end)
    for query in [{"state": state.value}, *([{"reason": "failed"}] if reason else [])]:
        assert [*boss.get(CALLS, query).context["cl"].result_list] == [calls[1], calls[0], calls[2]]
    assert not boss.get(CALLS, {"state": "available", "reason": "failed"}).context["cl"].result_list


def test_a_search_by_task_looks_through_the_newest_calls(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.admin.calls.MANY", 3)
    old, *_ = [CallQueue.objects.send("other.task") for _ in range(4)]
    found = boss.get(CALLS, {"q": "other"}).context["cl"].result_list
    assert len(found) == 3
    assert old not in found


# What is done to calls


def test_calls_can_be_neither_made_nor_edited_nor_deleted_and_keys_not_deleted(boss: Client) -> None:
    (call,) = waiting(1)
    for url in (url_of("callqueue", "add"), url_of_row(call), url_of("callqueue", "delete", call.pk)):
        assert boss.post(url, {"task": "x", "post": "yes"}).status_code == 403
    assert boss.get(url_of("ratelimitkey", "delete", the_key().pk)).status_code == 403


def test_calls_are_cancelled_retried_and_run(clerk: Callable[..., Client]) -> None:
    calls = waiting(3)
    client = clerk("cancel_callqueue", "retry_callqueue", "run_callqueue")
    assert "3 calls: cancelled" in act(client, CALLS, "cancel", *calls)
    assert {call.state for call in CallQueue.objects.all()} == {State.CANCELLED}
    assert "they run or have ended" in act(client, CALLS, "cancel", *calls)
    assert "3 calls: queued for a retry" in act(client, CALLS, "retry", *calls)
    assert "1 calls: moved to the front" in act(client, CALLS, "run_now", calls[2])
    assert CallQueue.objects.waiting().order_by("position").first() == calls[2]
    assert LogEntry.objects.count() == 4


PERMISSIONS = {"cancel": "cancel_callqueue", "retry": "retry_callqueue", "run_now": "run_callqueue"}
PERMISSIONS |= dict.fromkeys(("pause", "resume"), "pause_ratelimitkey")
PERMISSIONS |= dict.fromkeys(("override", "end_override"), "override_ratelimitkey")
PERMISSIONS |= dict.fromkeys(("observe", "enforce"), "change_ratelimitkey")


@pytest.mark.parametrize("action", PERMISSIONS)
def test_nothing_is_done_without_the_permission(clerk: Callable[..., Client], action: str) -> None:
    (call,) = waiting(1)
    client = clerk(*(set(PERMISSIONS.values()) - {PERMISSIONS[action]}))
    before = [*CallQueue.objects.values(), *RateLimitKey.objects.values()]
    url, row = (CALLS, call) if PERMISSIONS[action].endswith("callqueue") else (KEYS, the_key())
    act(client, url, action, row, apply="1")
    assert [*CallQueue.objects.values(), *RateLimitKey.objects.values()] == before


def test_an_action_on_all_goes_batch_by_batch() -> None:
    waiting(5)
    ids = [pk for batch in batches(CallQueue.objects.all()) for pk in batch]
    assert sorted(ids) == sorted(CallQueue.objects.values_list("pk", flat=True))


# What is done to keys


def test_keys_are_paused_and_resumed(clerk: Callable[..., Client]) -> None:
    key = RateLimitKey.objects.declare("api", concurrency=1)
    client = clerk("pause_ratelimitkey")
    assert "1 key: paused" in act(client, KEYS, "pause", key)
    assert "Paused" in read(client, KEYS)
    call = CallQueue.objects.send("t", keys=["api"])
    assert call.state == State.AVAILABLE
    act(client, KEYS, "resume", key)
    assert seen(call).state == State.DISPATCHED
    assert LogEntry.objects.filter(object_id=str(key.pk)).count() == 2


def test_keys_are_observed_and_enforced(clerk: Callable[..., Client]) -> None:
    key = RateLimitKey.objects.declare("api", concurrency=0)
    client = clerk("change_ratelimitkey")
    assert "1 key: observed" in act(client, KEYS, "observe", key)
    call = CallQueue.objects.send("t", keys=["api"])
    assert seen(call).state == State.DISPATCHED
    assert "Observed: would have delayed" in read(client, KEYS)
    assert "its limits would have delayed" in read(client, key)
    assert "No key was changed" in act(client, KEYS, "observe", key)
    assert "1 key: enforced" in act(client, KEYS, "enforce", key)
    assert not the_key().is_observed
    assert [*KeyChange.objects.values_list("source", flat=True)] == ["admin", "admin"]


def test_whether_a_key_is_observed_is_a_field_of_its_form(clerk: Callable[..., Client]) -> None:
    key, client = RateLimitKey.objects.declare("api", concurrency=1), clerk("change_ratelimitkey")
    post(client, key, concurrency="2", weight="1", is_observed="on")
    assert (the_key().concurrency, the_key().is_observed) == (2, True)
    post(client, key, concurrency="2", weight="1")
    assert not the_key().is_observed


def test_a_key_is_overridden_until_a_time(clerk: Callable[..., Client]) -> None:
    (call,) = waiting(1)
    key, client = the_key(), clerk("override_ratelimitkey")
    assert "Override until" in act(client, KEYS, "override", key)
    until = timezone.now() + timedelta(hours=1)
    when = {"until_0": until.strftime("%Y-%m-%d"), "until_1": until.strftime("%H:%M:%S")}
    for fields, words in (
        ({**when, "rate_limit": "5"}, "Give both the limit and its period, or neither."),
        ({"until_0": "2001-01-01", "until_1": "00:00:00"}, "Give a time to come."),
        ({"until_0": "9999-12-31", "until_1": "23:59:59"}, "give a time from 0001-01-02 to 9999-12-30"),
        ({**when, "concurrency": "1"}, "overridden to"),
    ):
        assert seen(call).state == State.AVAILABLE
        assert words in act(client, KEYS, "override", key, apply="1", **fields)
    assert seen(call).state == State.DISPATCHED
    act(client, KEYS, "end_override", key)
    assert the_key().override_until is None


def test_an_override_of_several_keys_keeps_what_they_do_not_share(clerk: Callable[..., Client]) -> None:
    keys = [RateLimitKey.objects.declare(name, concurrency=limit, rate=(7, 60)) for name, limit in (("a", 4), ("b", 9))]
    client = clerk("override_ratelimitkey")
    form = act(client, KEYS, "override", *keys)
    assert re.search(r'name="concurrency"[^>]*value=', form) is None
    assert re.search(r'name="rate_limit" value="7"', form)
    act(client, KEYS, "override", *keys, apply="1", throttle_limit="3", throttle_period="PT1S", **FAR)
    fields = ("override_concurrency", "override_throttle_limit", "override_rate_limit")
    stored = RateLimitKey.objects.filter(name__in=["a", "b"]).order_by("name").values_list(*fields)
    assert [*stored] == [(4, 3, None), (9, 3, None)]


def test_limits_that_waiting_calls_never_fit_are_stored_only_when_that_is_accepted(boss: Client) -> None:
    key, call = dear_call()
    assert "1 waiting calls cost more than these limits ever allow" in post(boss, key, concurrency="5")
    assert the_key().concurrency == 10
    page = post(boss, key, concurrency="5", accept_oversized="on")
    assert "1 waiting calls cost more than the limits ever allow" in page
    assert the_key().concurrency == 5
    api.resume("api")
    assert "1 of these cost more than the limits ever allow" in read(boss, key)
    assert "It costs 8 of the key api, whose limits never allow it." in read(boss, call)
    for query, is_there in (({"q": "api"}, True), ({"state": "oversized"}, True), ({"state": "available"}, False)):
        assert (str(call.pk) in read(boss, CALLS, **query)) is is_there


def test_an_override_that_waiting_calls_never_fit_must_be_accepted(clerk: Callable[..., Client]) -> None:
    key, _ = dear_call()
    client = clerk("override_ratelimitkey")
    refused = act(client, KEYS, "override", key, apply="1", concurrency="5", **FAR)
    assert "1 waiting calls cost more than these limits ever allow" in refused
    assert the_key().override_until is None
    done = act(client, KEYS, "override", key, apply="1", concurrency="5", accept_oversized="on", **FAR)
    assert "1 waiting calls cost more than the limits ever allow" in done
    assert the_key().override_concurrency == 5


def test_new_limits_let_in_what_waits(boss: Client) -> None:
    (call,) = waiting(1)
    assert str(call.pk) in read(boss, the_key())
    post(boss, the_key(), concurrency="2", throttle_limit="10", throttle_period="PT1S")
    key = the_key()
    assert (key.concurrency, key.throttle_limit, key.throttle_period) == (2, 10, timedelta(seconds=1))
    assert seen(call).state == State.DISPATCHED


def test_a_key_is_made_with_clear_errors(boss: Client) -> None:
    add = url_of("ratelimitkey", "add")
    assert "is not a duration" in post(boss, add, name="api", rate_limit="5", rate_period="tomorrow")
    assert "is not a key name" in post(boss, add, name="no spaces")
    post(boss, add, name="api", rate_limit="5", rate_period="minute")
    assert the_key().rate_period == timedelta(minutes=1)
    for page in (add, the_key()):
        refused = post(boss, page, name="new", throttle_limit="5")
        assert "Give both the limit and its period, or neither." in refused
        assert "is violated" not in refused
