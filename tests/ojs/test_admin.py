"""The HTTP API in the admin: who serves a queue, what workers are reply, which tokens hold."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.db.models import Model
from django.test import Client
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

import dispatcher
from dispatcher import api
from dispatcher.models import CallQueue, Queue
from dispatcher.ojs import fetch, pull_workers
from dispatcher.ojs.admin import KINDS
from dispatcher.ojs.auth import make_token
from dispatcher.ojs.cron import register_cron
from dispatcher.ojs.fetch import FetchRequest
from dispatcher.ojs.models import ApiToken, Cron, EventLogEntry, PullWorker
from tests.edges.pages import act, assert_bounded, post, read, url_of, url_of_row

APP = "dispatcher_ojs"

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


FORM = {"weight": 1, "on_full": "reject", "warn_at": 0.5}


@pytest.fixture
def in_flight() -> Queue:
    """Return a queue over HTTP of which a call is with a worker."""
    queue = Queue.objects.create(name="mail", delivery="http")
    CallQueue.objects.send("mail.send", queue="mail")
    assert fetch.fetch(FetchRequest(queues=["mail"]))
    return queue


def errors(client: Client, queue: Queue, **fields: object) -> dict[str, str]:
    """Return what the form of a queue refuses."""
    answer = client.post(url_of_row(queue), {**FORM, **fields})
    return {name: str(why) for name, why in answer.context["adminform"].form.errors.items()} if answer.context else {}


def test_who_serves_a_queue_is_set_until_its_calls_are_with_somebody(boss: Client, in_flight: Queue) -> None:
    assert 'name="delivery"' in read(boss, Queue.objects.create(name="other", delivery="http"))
    assert 'name="delivery"' not in read(boss, in_flight)
    post(boss, in_flight, **FORM, max_depth=5)
    assert "The delivery was not changed" in post(boss, in_flight, **FORM, max_depth=5, delivery="direct")
    in_flight.refresh_from_db()
    assert (in_flight.max_depth, in_flight.delivery) == (5, "http")
    assert list(errors(boss, in_flight, weight=2)) == ["weight"]


def test_the_weight_of_a_direct_queue_is_set_and_refused_with_another_delivery(boss: Client) -> None:
    queue = Queue.objects.create(name="mail", delivery="direct")
    for weight in (0, 1001, ""):
        assert list(errors(boss, queue, delivery="direct", weight=weight)) == ["weight"]
    assert errors(boss, queue, delivery="direct", weight=3) == {}
    assert "weight" in read(boss, url_of("queue"))
    refused = errors(boss, queue, delivery="http", weight=3)
    assert list(refused) == ["weight"]
    assert "direct" in refused["weight"]
    queue.refresh_from_db()
    assert (queue.delivery, queue.weight) == ("direct", 3)
    assert errors(boss, queue, delivery="http", weight=1) == {}


def test_a_queue_with_lanes_keeps_its_row_and_with_it_its_delivery(boss: Client) -> None:
    queues = [Queue.objects.create(name=name, delivery="direct") for name in ("mail", "unused")]
    CallQueue.objects.send("mail.send", queue="mail")
    act(boss, url_of("queue"), "delete_selected", queues[0], post="yes")
    for queue in queues:
        boss.post(url_of("queue", "delete", queue.name), {"post": "yes"})
    assert [queue.name for queue in Queue.objects.all()] == ["mail"]


def test_the_event_log_is_read_and_nothing_else(boss: Client, settings: Settings) -> None:
    settings.DISPATCHER = {"event_retention": 60}
    for name in ("queue:mail", "api"):
        api.declare(name, {})
    api.pause("queue:mail", by="ada")
    api.block("api", timedelta(hours=1))
    page = read(boss, url_of("eventlogentry", app=APP))
    assert "paused_by ada" in page
    assert "rate_limit.dynamic_adjusted" in page
    assert "paused_by ada" not in read(boss, url_of("eventlogentry", app=APP), q="api")
    entry = EventLogEntry.objects.first()
    assert entry is not None
    for url in (url_of("eventlogentry", "add", app=APP), url_of("eventlogentry", "delete", entry.pk, app=APP)):
        assert boss.post(url, {"post": "yes"}).status_code == 403


def test_the_kinds_of_the_event_log_are_offered_without_reading_it(
    boss: Client, django_assert_num_queries: DjangoAssertNumQueries, settings: Settings
) -> None:
    settings.DISPATCHER = {"event_retention": 60}
    api.declare("queue:mail", {})
    api.pause("queue:mail")
    api.resume("queue:mail")
    url = url_of("eventlogentry", app=APP)
    with django_assert_num_queries(4) as asked:
        page = boss.get(url, {"kind": "queue.paused"}).content.decode()
    assert not [query["sql"] for query in asked.captured_queries if "DISTINCT" in query["sql"]]
    assert ("paused_by" in page, "resumed_by" in page) == (True, False)
    assert all(f"?kind={kind}" in page for kind in KINDS)


def test_whatever_is_written_into_the_event_log_can_be_chosen_there() -> None:
    folder = Path(dispatcher.__file__).parent
    source = "".join(path.read_text() for path in folder.rglob("*.py"))
    named = re.findall(r'(?:kind=|\.entry\(|note_event\()"([a-z_]+\.[a-z_]+)"', source)
    named += re.findall(r"'(rate_limit\.[a-z_]+)'", (folder / "sql/functions/note_limits.sql").read_text())
    assert set(named) == set(KINDS)


@pytest.fixture
def clerk() -> Callable[[str], Client]:
    """Log in somebody who may do this one thing."""

    def log_in(permission: str) -> Client:
        user, client = User.objects.create_user("clerk", is_staff=True), Client()
        user.user_permissions.set(Permission.objects.filter(codename=permission))
        client.force_login(user)
        return client

    return log_in


@pytest.mark.parametrize(
    ("action", "directive"), [("quiet", "quiet"), ("terminate", "terminate"), ("resume", "running")]
)
def test_an_action_sets_the_directive_of_workers(boss: Client, action: str, directive: str) -> None:
    pull_workers.touch_worker("one")
    assert "get this directive" in act(boss, url_of("pullworker", app=APP), action, PullWorker.objects.get())
    assert pull_workers.heartbeat("one", []).directive == directive


def test_a_user_who_may_only_view_sets_no_directive(clerk: Callable[[str], Client]) -> None:
    pull_workers.touch_worker("one")
    client = clerk("view_pullworker")
    act(client, url_of("pullworker", app=APP), "terminate", PullWorker.objects.get())
    assert pull_workers.heartbeat("one", []).directive == "running"
    assert client.get(url_of("apitoken", app=APP)).status_code == 403


def test_a_cron_is_seen_with_its_next_run_which_a_change_moves(boss: Client) -> None:
    register_cron(
        Cron(name="report", expression="@daily", timezone="Europe/Berlin", job={"type": "shop.report", "args": []})
    )
    cron = Cron.objects.get()
    assert "report" in read(boss, url_of("cron", app=APP))
    assert "shop.report" in read(boss, cron)
    wanted = {"expression": "5 * * * *", "timezone": "UTC", "overlap": "allow", "is_enabled": "on"}
    for field, wrong in (("expression", "5 *"), ("timezone", "Berlin"), ("overlap", "never")):
        answer = boss.post(url_of_row(cron), wanted | {field: wrong})
        assert field in answer.context["adminform"].form.errors
    post(boss, cron, **wanted)
    changed = Cron.objects.get()
    assert (changed.expression, changed.overlap, changed.job) == ("5 * * * *", "allow", cron.job)
    assert changed.next_run_at is not None
    assert changed.next_run_at.minute == 5
    del wanted["is_enabled"]
    post(boss, cron, **wanted)
    assert Cron.objects.get().next_run_at is None
    assert boss.get(url_of("cron", "add", app=APP)).status_code == 403


def test_a_token_is_switched_off_and_neither_made_nor_shown(boss: Client) -> None:
    token = make_token("me", ["read"])
    row = ApiToken.objects.get()
    page = read(boss, row)
    assert token not in page
    assert row.digest not in page
    for scopes, words in (
        ("read,send", ""),
        ("read,everything", "is not a scope; give send, fetch, read, admin, key, or"),
    ):
        assert words in post(boss, row, scopes=scopes, expires_at_0="", expires_at_1="")
        row.refresh_from_db()
        assert (row.is_active, row.scopes) == (False, ["read", "send"])
    assert boss.get(url_of("apitoken", "add", app=APP)).status_code == 403


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"scopes": "read,admin"}, "Only a superuser can grant admin"),
        ({"is_active": "on"}, "Only a superuser can reactivate a token"),
        ({"expires_at_0": "2099-01-01", "expires_at_1": "00:00:00"}, "or extend it"),
        ({"expires_at_0": "", "expires_at_1": ""}, "or extend it"),
    ],
)
def test_only_a_superuser_gives_a_token_more_than_it_has(
    boss: Client, clerk: Callable[[str], Client], change: dict[str, str], word: str
) -> None:
    make_token("me", ["read", "send"], timezone.now())
    ApiToken.objects.update(is_active=False)
    client, url = clerk("change_apitoken"), url_of_row(ApiToken.objects.get())
    before = ApiToken.objects.values().get()
    now = timezone.localtime(before["expires_at"])
    same = {"scopes": "read", "expires_at_0": f"{now:%Y-%m-%d}", "expires_at_1": f"{now:%H:%M:%S}"}
    assert word in client.post(url, same | change).content.decode()
    assert ApiToken.objects.values().get() == before
    assert client.post(url, same).status_code == 302
    assert ApiToken.objects.get().scopes == ["read"]
    assert boss.post(url, same | change).status_code == 302


@pytest.mark.parametrize("model", [PullWorker, ApiToken, EventLogEntry], ids=lambda model: model.__name__)
def test_a_list_counts_up_to_a_bound_and_sorts_by_no_column(boss: Client, model: type[Model]) -> None:
    assert_bounded(boss, url_of(str(model._meta.model_name), app=APP), model._meta.db_table)
