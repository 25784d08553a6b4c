"""What a request that waits or streams does when its credentials are revoked."""

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import connections
from django.db.models.functions import Now
from django.http import HttpRequest
from django.test import RequestFactory
from pytest_django import Settings

from dispatcher.models import CallQueue, Queue
from dispatcher.ojs import auth
from dispatcher.ojs.events.live import LiveEvents
from dispatcher.ojs.long_poll import Waiters
from dispatcher.ojs.models import ApiToken
from tests.ojs.http_client import Api, Holder

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("open_http"), pytest.mark.django]


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> Event:
    """Give what is set when a request that waits has asked whether its credentials still hold."""
    asked, holds = Event(), auth.Access.is_valid

    def seen(of: auth.Access) -> bool:
        still = holds(of)
        asked.set()
        return still

    monkeypatch.setattr(auth.Access, "is_valid", seen)
    return asked


def in_thread(ask: Callable[[], object]) -> Thread:
    def run() -> None:
        try:
            ask()
        finally:
            connections.close_all()

    thread = Thread(target=run)
    thread.start()
    return thread


def revoke() -> None:
    call_command("dispatcher_token", "me", "--revoke")


def demote() -> None:
    ApiToken.objects.update(scopes=["read:other"])


def expire() -> None:
    ApiToken.objects.update(expires_at=Now())


lost = pytest.mark.parametrize("lose", [revoke, demote, expire])


@lost
def test_a_fetch_that_waits_gets_nothing_once_its_token_is_revoked(
    holder: Holder, waiting: Event, lose: Callable[[], None]
) -> None:
    got: list[Any] = []
    thread = in_thread(lambda: got.append(holder("fetch").fetch("mail", wait_ms=30_000)))
    assert waiting.wait(20)
    lose()
    CallQueue.objects.send("mail.send", queue="mail")
    thread.join(20)
    assert got == [[]]


@lost
def test_a_push_that_waits_for_room_sends_nothing_once_its_token_is_revoked(
    holder: Holder, waiting: Event, lose: Callable[[], None]
) -> None:
    Queue.objects.create(name="mail", delivery="http", max_depth=1, on_full="block")
    CallQueue.objects.send("mail.send", queue="mail")
    job = {"type": "mail.send", "args": [], "options": {"queue": "mail"}}
    blocks = {"OJS-Block-Timeout": "30"}
    thread = in_thread(lambda: holder("send").post("/jobs", job, status=429, **blocks))
    assert waiting.wait(20)
    lose()
    thread.join(20)
    assert not thread.is_alive()
    assert CallQueue.objects.count() == 1


@lost
def test_a_stream_ends_once_its_token_is_revoked(
    holder: Holder, lose: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = holder("read")
    monkeypatch.setattr("dispatcher.ojs.views.events.sleep", lambda _: lose())
    (opening,) = api.client.get("/ojs/v1/events/stream", headers=api.headers).streaming_content
    assert opening.endswith(b"retry: 3000\n\n")


def test_a_stream_of_a_person_ends_when_the_rights_end(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DISPATCHER = {}
    user = User.objects.create_superuser("boss")
    api = Api()
    api.client.force_login(user)
    monkeypatch.setattr("dispatcher.ojs.views.events.sleep", lambda _: User.objects.update(is_staff=False))
    (opening,) = api.client.get("/ojs/v1/events/stream").streaming_content
    assert opening.endswith(b"retry: 3000\n\n")


def replaced() -> tuple[auth.Access, auth.Access]:
    """Return the access of a token that was revoked, and that of another which took its name."""
    old = auth.authenticate(asking(auth.make_token("me", ["read"])))
    revoke()
    return old, auth.authenticate(asking(auth.make_token("me", ["read"])))


def narrowed() -> tuple[auth.Access, auth.Access]:
    """Return what a token allowed before it was narrowed, and what it allows since."""
    token = auth.make_token("me", ["read"])
    old = auth.authenticate(asking(token))
    demote()
    return old, auth.authenticate(asking(token))


def asking(token: str) -> HttpRequest:
    return RequestFactory().get("/", headers={"Authorization": f"Bearer {token}"})


two_of_one_name = pytest.mark.parametrize("made", [replaced, narrowed])


@two_of_one_name
@pytest.mark.parametrize("order", [1, -1])
def test_a_stream_that_may_not_go_on_ends_beside_one_of_the_same_name_that_may(
    made: Callable[[], tuple[auth.Access, auth.Access]], order: int
) -> None:
    old, new = made()
    live = LiveEvents()
    asked = {each: live.is_valid(each) for each in (old, new)[::order]}
    assert asked == {old: False, new: True}


@two_of_one_name
def test_a_fetch_that_may_not_wait_ends_beside_one_of_the_same_name_that_may(
    made: Callable[[], tuple[auth.Access, auth.Access]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.ojs.long_poll._CHECK_S", 0.0)
    Queue.objects.create(name="mail", delivery="http")
    (old, new), waiters, woken = made(), Waiters(), {}

    def wait(access: auth.Access) -> None:
        with waiters.waiting(access, ["mail"], access.is_valid) as waiter:
            waiter.wait(20)
        woken[access] = waiter.is_woken

    waits = in_thread(lambda: wait(new))
    wait(old)
    CallQueue.objects.send("mail.send", queue="mail")
    waits.join(30)
    assert woken == {old: False, new: True}
