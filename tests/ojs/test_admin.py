"""The HTTP API in the admin: who serves a queue, what workers are reply, which tokens hold."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from pytest_django import DjangoAssertNumQueries, Settings

import dispatcher
from dispatcher import api
from dispatcher.models import CallQueue, Queue
from dispatcher.ojs import fetch, pull_workers
from dispatcher.ojs.admin import KINDS
from dispatcher.ojs.auth import make_token
from dispatcher.ojs.fetch import FetchRequest
from dispatcher.ojs.models import ApiToken, EventLogEntry, PullWorker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


def test_who_serves_a_queue_is_set_until_its_calls_are_with_somebody(boss: Client) -> None:
    queue = Queue.objects.create(name="mail", delivery="http")
    url = reverse("admin:dispatcher_queue_change", args=["mail"])
    assert 'name="delivery"' in boss.get(url).content.decode()
    CallQueue.objects.send("mail.send", queue="mail")
    fetch.fetch(FetchRequest(queues=["mail"]))
    assert 'name="delivery"' not in boss.get(url).content.decode()
    boss.post(url, {"weight": 1, "max_depth": 5, "on_full": "reject", "warn_at": 0.5})
    form = {"delivery": "direct", "weight": 1, "max_depth": 5, "on_full": "reject", "warn_at": 0.5}
    assert "The delivery was not changed" in boss.post(url, form, follow=True).content.decode()
    queue.refresh_from_db()
    assert (queue.max_depth, queue.delivery) == (5, "http")


def test_the_weight_of_a_direct_queue_is_set(boss: Client) -> None:
    queue = Queue.objects.create(name="mail", delivery="direct")
    url = reverse("admin:dispatcher_queue_change", args=["mail"])
    form = {"delivery": "direct", "on_full": "reject", "warn_at": 0.5}
    for weight in (0, 1001, ""):
        assert boss.post(url, {**form, "weight": weight}).context["adminform"].form.errors.keys() == {"weight"}
    boss.post(url, {**form, "weight": 3})
    queue.refresh_from_db()
    assert queue.weight == 3
    assert "weight" in boss.get(reverse("admin:dispatcher_queue_changelist")).content.decode()


def test_a_weight_is_refused_for_a_queue_of_another_delivery(boss: Client) -> None:
    queue = Queue.objects.create(name="mail", delivery="direct", weight=3)
    url = reverse("admin:dispatcher_queue_change", args=["mail"])
    form = {"delivery": "http", "on_full": "reject", "warn_at": 0.5}
    errors = boss.post(url, {**form, "weight": 3}).context["adminform"].form.errors
    assert list(errors) == ["weight"]
    assert "direct" in str(errors["weight"])
    assert boss.post(url, {**form, "weight": 1}).status_code == 302
    # While calls are in flight, the delivery is shown and not sent.
    CallQueue.objects.send("mail.send", queue="mail")
    fetch.fetch(FetchRequest(queues=["mail"]))
    errors = boss.post(url, {**form, "weight": 2}).context["adminform"].form.errors
    assert list(errors) == ["weight"]
    queue.refresh_from_db()
    assert (queue.delivery, queue.weight) == ("http", 1)


def test_a_queue_with_lanes_keeps_its_row_and_with_it_its_delivery(boss: Client) -> None:
    for name in ("mail", "unused"):
        Queue.objects.create(name=name, delivery="direct")
    CallQueue.objects.send("mail.send", queue="mail")
    chosen = {"action": "delete_selected", "_selected_action": ["mail"], "post": "yes"}
    boss.post(reverse("admin:dispatcher_queue_changelist"), chosen)
    for name in ("mail", "unused"):
        boss.post(reverse("admin:dispatcher_queue_delete", args=[name]), {"post": "yes"})
    assert [queue.name for queue in Queue.objects.all()] == ["mail"]


def test_the_event_log_is_read_and_nothing_else(boss: Client, settings: Settings) -> None:
    settings.DISPATCHER = {"event_retention": 60}
    api.declare("queue:mail", {})
    api.pause("queue:mail", by="ada")
    api.declare("api", {})
    api.block("api", timedelta(hours=1))
    url = reverse("admin:dispatcher_ojs_eventlogentry_changelist")
    page = boss.get(url).content.decode()
    assert "paused_by ada" in page
    assert "rate_limit.dynamic_adjusted" in page
    assert "paused_by ada" not in boss.get(url, {"q": "api"}).content.decode()
    assert boss.get(reverse("admin:dispatcher_ojs_eventlogentry_add")).status_code == 403
    entry = EventLogEntry.objects.first()
    assert entry is not None
    delete = reverse("admin:dispatcher_ojs_eventlogentry_delete", args=[entry.pk])
    assert boss.post(delete, {"post": "yes"}).status_code == 403


def test_the_kinds_of_the_event_log_are_offered_without_reading_it(
    boss: Client, django_assert_num_queries: DjangoAssertNumQueries, settings: Settings
) -> None:
    settings.DISPATCHER = {"event_retention": 60}
    api.declare("queue:mail", {})
    api.pause("queue:mail")
    api.resume("queue:mail")
    url = reverse("admin:dispatcher_ojs_eventlogentry_changelist")
    with django_assert_num_queries(4) as asked:
        page = boss.get(url, {"kind": "queue.paused"}).content.decode()
    assert not [query["sql"] for query in asked.captured_queries if "DISTINCT" in query["sql"]]
    assert ("paused_by" in page, "resumed_by" in page) == (True, False)
    assert all(f"?kind={kind}" in page for kind in KINDS)


def test_whatever_is_written_into_the_event_log_can_be_chosen_there() -> None:
    source = "".join(path.read_text() for path in Path(dispatcher.__file__).parent.rglob("*.py"))
    named = re.findall(r'(?:kind=|\.entry\()"([a-z_]+\.[a-z_]+)"', source)
    assert set(named) == set(KINDS)


@pytest.mark.parametrize(
    ("action", "directive"), [("quiet", "quiet"), ("terminate", "terminate"), ("resume", "running")]
)
def test_an_action_sets_the_directive_of_workers(boss: Client, action: str, directive: str) -> None:
    pull_workers.touch_worker("one")
    url = reverse("admin:dispatcher_ojs_pullworker_changelist")
    worker = PullWorker.objects.get()
    page = boss.post(url, {"action": action, "_selected_action": [worker.pk]}, follow=True).content.decode()
    assert "get this directive" in page
    assert pull_workers.heartbeat("one", []).directive == directive


def test_a_user_who_may_only_view_sets_no_directive() -> None:
    pull_workers.touch_worker("one")
    clerk = User.objects.create_user("clerk", is_staff=True)
    clerk.user_permissions.set(Permission.objects.filter(codename="view_pullworker"))
    client = Client()
    client.force_login(clerk)
    url = reverse("admin:dispatcher_ojs_pullworker_changelist")
    client.post(url, {"action": "terminate", "_selected_action": [PullWorker.objects.get().pk]})
    assert pull_workers.heartbeat("one", []).directive == "running"
    assert client.get(reverse("admin:dispatcher_ojs_apitoken_changelist")).status_code == 403


def test_a_token_is_switched_off_and_neither_made_nor_shown(boss: Client) -> None:
    token = make_token("me", ["read"])
    row = ApiToken.objects.get()
    url = reverse("admin:dispatcher_ojs_apitoken_change", args=[row.pk])
    page = boss.get(url).content.decode()
    assert token not in page
    assert row.digest not in page
    boss.post(url, {"scopes": "read,send", "expires_at_0": "", "expires_at_1": ""})
    row.refresh_from_db()
    assert (row.is_active, row.scopes) == (False, ["read", "send"])
    assert boss.get(reverse("admin:dispatcher_ojs_apitoken_add")).status_code == 403
    refused = boss.post(url, {"scopes": "read,everything", "expires_at_0": "", "expires_at_1": ""}).content.decode()
    assert "is not a scope; give send, fetch, read, admin, or send:mail* for some queues only." in refused
    row.refresh_from_db()
    assert row.scopes == ["read", "send"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"scopes": "read,admin"}, "Only a superuser can grant admin"),
        ({"is_active": "on"}, "Only a superuser can reactivate a token"),
        ({"expires_at_0": "2099-01-01", "expires_at_1": "00:00:00"}, "or extend it"),
        ({"expires_at_0": "", "expires_at_1": ""}, "or extend it"),
    ],
)
def test_only_a_superuser_gives_a_token_more_than_it_has(boss: Client, change: dict[str, str], word: str) -> None:
    make_token("me", ["read", "send"], timezone.now())
    ApiToken.objects.update(is_active=False)
    clerk, client = User.objects.create_user("clerk", is_staff=True), Client()
    clerk.user_permissions.set(Permission.objects.filter(codename="change_apitoken"))
    client.force_login(clerk)
    url = reverse("admin:dispatcher_ojs_apitoken_change", args=[ApiToken.objects.get().pk])
    before = ApiToken.objects.values().get()
    now = timezone.localtime(before["expires_at"])
    same = {"scopes": "read", "expires_at_0": f"{now:%Y-%m-%d}", "expires_at_1": f"{now:%H:%M:%S}"}
    assert word in client.post(url, same | change).content.decode()
    assert ApiToken.objects.values().get() == before
    assert client.post(url, same).status_code == 302
    assert ApiToken.objects.get().scopes == ["read"]
    assert boss.post(url, same | change).status_code == 302
