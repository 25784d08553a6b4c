"""Webhooks: a subscriber gets every event, and a receiver's response affects no other."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import requests
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone
from pytest_django import Settings

import dispatcher.api
from dispatcher import engine
from dispatcher.errors import RateLimited, TargetRefused
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.ojs import webhooks as deliver
from dispatcher.ojs.errors import WebhookRefused
from dispatcher.ojs.events.source import settled_at
from dispatcher.ojs.models import Subscription
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import erase
from tests.ojs.http_client import Api, another_transaction
from tests.serving import Reply, Request, serving

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]

EVENT = {"id": "evt_1", "type": "job.completed", "data": {"job_type": "a"}}
SECRET = "whsec_very_secret"  # noqa: S105 -- of these tests
Answer = tuple[int, dict[str, str]]


def subscribe(api: Api, *events: str, url: str = "https://example.org/hook") -> str:
    """Subscribe to events; return the subscription's id."""
    wanted = {"url": url, "events": events, "secret": SECRET}
    return str(api.post("/webhooks/subscriptions", wanted, status=201)["id"]).removeprefix("sub_")


def posts() -> list[dict[str, Any]]:
    """Return the events that are to be posted, in the order of sending."""
    return [call.args[1] for call in CallQueue.objects.filter(task="dispatcher.post_event").order_by("position")]


class Receiver:
    """Answers posts on this machine, and keeps what it received."""

    def __init__(self) -> None:
        self.url = ""
        self.received: list[tuple[dict[str, str], str]] = []
        self.answers: list[Answer] = []

    def answer(self, asked: Request) -> Reply:
        if asked.method == "GET":
            return 200, {}, b""
        self.received.append((dict(asked.headers), asked.body.decode()))
        return *(self.answers.pop(0) if self.answers else (200, {})), b""


@contextmanager
def listening() -> Iterator[Receiver]:
    receiver = Receiver()
    with serving(receiver.answer) as address:
        receiver.url = f"{address}/"
        yield receiver


@pytest.fixture
def receiver(settings: Settings) -> Iterator[Receiver]:
    """Give a receiver on this machine, where webhooks may post for this test."""
    settings.DISPATCHER = {"http_anonymous": ["admin"], "event_retention": 3_600, "http_allowed_hosts": ["127.0.0.1"]}
    with listening() as receiver:
        yield receiver


# Who is reply, and of what


def test_each_event_is_delivered_once_by_a_call_of_its_own(api: Api) -> None:
    api.push()
    wanted = {"url": "https://example.org/hook", "events": ["job.enqueued"], "secret": SECRET}
    made = api.post("/webhooks/subscriptions", wanted, status=201)["subscription"]
    assert made["secret"] == wanted["secret"]
    path = f"/webhooks/subscriptions/{made['id']}"
    assert "secret" not in api.get(path)["subscription"]
    assert deliver.deliver_events() == 0, "earlier events are not delivered"
    job = api.push()
    assert (deliver.deliver_events(), deliver.deliver_events()) == (1, 0)
    assert [event["data"]["job_id"] for event in posts()] == [job["id"]]
    assert api.ask("PATCH", path, {"active": False})["subscription"]["active"] is False
    api.ask("DELETE", path)
    assert not Subscription.objects.exists()
    api.get(path, status=404)


def sent(api: Api) -> Callable[[], object]:
    del api
    return lambda: CallQueue.objects.send("a.task", queue="late")


def acked(api: Api) -> Callable[[], object]:
    job = api.push(queue="late")
    api.fetch("late")
    return lambda: api.ack(job)


@pytest.mark.parametrize(("deed", "kind"), [(sent, "job.enqueued"), (acked, "job.completed")])
def test_what_a_transaction_holds_back_is_delivered_when_it_commits(
    api: Api, deed: Callable[[Api], Callable[[], object]], kind: str
) -> None:
    does = deed(api)
    subscribe(api, "job.*")
    with another_transaction(does):
        api.push()
        assert deliver.deliver_events() == 0, "what was stamped before it may still come"
    assert deliver.deliver_events() == 2
    assert {(event["type"], event["data"]["queue"]) for event in posts()} == {
        (kind, "late"),
        ("job.enqueued", "default"),
    }


def test_a_transaction_that_writes_other_things_holds_nothing_back(api: Api) -> None:
    subscribe(api, "job.*")
    with another_transaction(lambda: (User.objects.create(username="ada"), CallQueue.objects.count())):
        api.push()
        assert deliver.deliver_events() == 1


def test_a_transaction_whose_start_can_t_be_seen_is_taken_to_be_a_minute_old(api: Api) -> None:
    del api
    with connection.cursor() as cursor, another_transaction(lambda: CallQueue.objects.send("a.task", queue="late")):
        cursor.execute("CREATE ROLE watcher")
        cursor.execute("SET ROLE watcher")
        try:
            settled = settled_at()
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute("DROP ROLE watcher")
    assert timedelta(seconds=59) < timezone.now() - settled < timedelta(seconds=70)


def test_however_much_happens_between_two_looks_all_of_it_is_delivered(api: Api) -> None:
    subscribe(api, "job.enqueued")
    jobs = CallQueue.objects.send_many([Call(task="a.task", queue="many")] * 2_100)
    assert sum(iter(deliver.deliver_events, 0)) == 2_100
    assert {event["data"]["job_id"] for event in posts()} == {str(job.id) for job in jobs}


def test_a_backlog_is_delivered_in_batches_that_delay_no_other_subscriber(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliver, "_BATCH", 2)
    slow, fast = subscribe(api, "job.enqueued"), subscribe(api, "job.cancelled")
    jobs = [api.push()["id"] for _ in range(5)]
    api.ask("DELETE", f"/jobs/{jobs[0]}")
    keep, batches = deliver._without_own_posts, list[int]()  # noqa: SLF001 -- what is made to fail

    def fail_later(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
        batches.append(len(events))
        if len(batches) > 2:
            raise RuntimeError
        return keep(events)

    monkeypatch.setattr(deliver, "_without_own_posts", fail_later)
    with pytest.raises(RuntimeError):
        deliver.deliver_events()
    calls = CallQueue.objects.filter(task="dispatcher.post_event")
    assert sorted(call.args[0] for call in calls) == sorted([slow, slow, fast]), "committed, and in turns"
    monkeypatch.setattr(deliver, "_without_own_posts", keep)
    assert deliver.deliver_events() == 3
    assert sorted(event["data"]["job_id"] for event in posts()) == sorted([*jobs, jobs[0]])


def test_a_receiver_that_has_failed_for_three_days_is_switched_off_and_on_again(api: Api, receiver: Receiver) -> None:
    number = subscribe(api, "job.*", url=receiver.url)
    path = f"/webhooks/subscriptions/sub_{number}"

    def fail(status: int = 500) -> None:
        receiver.answers = [(status, {})]
        with pytest.raises((requests.HTTPError, WebhookRefused)):
            deliver.post(number, EVENT)

    fail()
    since = api.get(path)["subscription"]["failing_since"]
    assert since is not None
    Subscription.objects.update(failing_since=timezone.now() - timedelta(days=2))
    fail(404)
    assert api.get(path)["subscription"]["active"] is True
    # After a success the days are counted from the next failure on.
    deliver.post(number, EVENT)
    assert api.get(path)["subscription"]["failing_since"] is None
    Subscription.objects.update(failing_since=timezone.now() - timedelta(days=4))
    fail()
    assert api.get(path)["subscription"]["active"] is False
    assert deliver.post(number, EVENT) == {"status": "ended"}
    on = api.ask("PATCH", path, {"active": True})["subscription"]
    assert (on["active"], on["failing_since"]) == (True, None)


def test_a_failure_is_delivered_though_the_job_waits_again_or_runs_by_the_next_look(api: Api) -> None:
    subscribe(api, "job.failed", "job.started")
    api.push(options={"retry": {"max_attempts": 3, "initial_interval": "PT0S"}})
    for attempt in range(2):
        engine.tick(now=timezone.now() + timedelta(seconds=1))
        (job,) = api.fetch()
        api.nack(job, code="handler_error", message="no", attempt=attempt)
    engine.tick(now=timezone.now() + timedelta(seconds=1))
    CallQueue.objects.update(id=uuid4(), created_at=timezone.now() - timedelta(days=1))
    deliver.deliver_events()
    assert [event["data"]["attempt"] for event in posts() if event["type"] == "job.failed"] == [1, 2]


def test_posts_that_wait_for_a_limit_are_no_news(api: Api) -> None:
    dispatcher.api.declare("queue:celery", {"concurrency": 1})
    subscribe(api, "*")
    for _ in range(3):
        api.push()
    assert deliver.deliver_events() == 3
    dispatcher.api.block("queue:celery", timedelta(0))
    assert [event["type"] for event in api.get("/events?types=rate_limit.exceeded")["events"]]
    deliver.deliver_events()
    assert deliver.deliver_events() == 0
    assert {event["type"] for event in posts()} == {"job.enqueued", "rate_limit.dynamic_adjusted"}


# What is posted, and what is answered


def test_an_event_is_posted_with_its_signature_to_the_subscriber(api: Api, receiver: Receiver) -> None:
    number = subscribe(api, "job.*", url=receiver.url)
    receiver.answers = [(500, {})]
    with pytest.raises(requests.HTTPError):
        deliver.post(number, EVENT)
    assert deliver.post(number, EVENT) == {"status": 200}
    headers, body = receiver.received[1]
    assert json.loads(body) == EVENT
    assert headers["X-OJS-Signature"] == deliver.signature(SECRET, headers["X-OJS-Timestamp"], body)
    assert headers["X-OJS-Delivery-ID"] == receiver.received[0][0]["X-OJS-Delivery-ID"]


def test_a_post_is_signed_as_the_spec_says() -> None:
    # As `openssl dgst -sha256 -hmac secret` says it.
    wanted = "b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163"
    assert deliver.signature("secret", "1700000000", "{}") == f"sha256={wanted}"


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_followed_with_the_body(api: Api, receiver: Receiver, status: int) -> None:
    number = subscribe(api, "job.*", url=receiver.url)
    receiver.answers = [(status, {"Location": "/elsewhere"})]
    assert deliver.post(number, EVENT) == {"status": 200}
    assert [json.loads(body) for _, body in receiver.received] == [EVENT, EVENT]


@pytest.mark.parametrize("answers", [[(303, {"Location": "/see"})], [(307, {"Location": "/see"})] * 4, [(304, {})]])
def test_a_redirect_that_delivers_nothing_is_a_failure(api: Api, receiver: Receiver, answers: list[Answer]) -> None:
    number, receiver.answers = subscribe(api, "job.*", url=receiver.url), list(answers)
    with pytest.raises(requests.HTTPError, match=r"redirects to .*(/see|nowhere), so nothing is delivered"):
        deliver.post(number, EVENT)
    assert not receiver.answers


def post_once(api: Api, receiver: Receiver, answer: Answer) -> tuple[CallQueue, RateLimitKey]:
    """Have one event posted and answered so; return its call and the key of its subscription."""
    number = subscribe(api, "job.enqueued", url=receiver.url)
    receiver.answers = [answer]
    api.push()
    assert deliver.deliver_events() == 1
    call = CallQueue.objects.get(task="dispatcher.post_event")
    assert call.ticket is not None
    engine.execute(call.id, call.ticket, lambda: deliver.post(*call.args))
    call.refresh_from_db()
    return call, RateLimitKey.objects.get(name=f"webhook:{number}")


@pytest.mark.parametrize("status", [429, 503])
def test_a_receiver_that_says_stop_stops_posts_to_itself_only_and_for_a_day_at_most(
    api: Api, receiver: Receiver, status: int
) -> None:
    dispatcher.api.declare("queue:celery", {"concurrency": 9})
    call, key = post_once(api, receiver, (status, {"Retry-After": "31622400"}))
    assert (call.state, call.attempt) == (State.AVAILABLE, 0)
    assert key.blocked_until is not None
    assert timedelta(hours=23) < key.blocked_until - timezone.now() <= timedelta(days=1)
    assert RateLimitKey.objects.get(name="queue:celery").blocked_until is None


@pytest.mark.parametrize(
    ("status", "state"),
    [
        (400, State.DISCARDED),
        (408, State.DISCARDED),
        (410, State.DISCARDED),
        (429, State.RETRYABLE),
        (503, State.RETRYABLE),
    ],
)
def test_a_post_that_its_receiver_refuses_is_not_tried_again(
    api: Api, receiver: Receiver, status: int, state: State
) -> None:
    call, _ = post_once(api, receiver, (status, {}))
    assert (call.state, call.attempt) == (state, 1)
    letters = [letter["id"] for letter in api.get("/dead-letter")["jobs"]]
    assert letters == ([str(call.id)] if state == State.DISCARDED else [])
    if state == State.DISCARDED:
        assert f"answered {status}" in call.error["message"]


def test_a_deleted_key_is_created_again(api: Api) -> None:
    number = subscribe(api, "job.enqueued")
    for _ in range(2):
        api.push()
        assert deliver.deliver_events() == 1
        erase(*CallQueue.objects.all())
        RateLimitKey.objects.filter(name=f"webhook:{number}").update(name=f"old:{number}:{timezone.now():%f}")


# Where webhooks may post


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/hook",
        "https://localhost/hook",
        "https://127.0.0.1/hook",
        "https://10.1.2.3:8443/hook",
        "https://169.254.169.254/latest",
        "https://[::1]/hook",
        "https://[fe80::1]/hook",
        "https://[::ffff:192.168.0.1]/hook",
    ],
)
def test_a_subscription_to_what_is_not_public_or_not_secret_is_refused(api: Api, url: str) -> None:
    problem = api.post("/webhooks/subscriptions", {"url": url, "events": ["*"]}, status=400)["error"]
    assert problem["details"] == {"field": "url"}
    assert "http_allowed_hosts" in problem["message"]
    assert not Subscription.objects.exists()
    number = subscribe(api, "*")
    api.ask("PATCH", f"/webhooks/subscriptions/sub_{number}", {"url": url}, status=400)
    assert Subscription.objects.get().url == "https://example.org/hook"


@pytest.mark.parametrize("allowed", ["*", "10.1.2.3", "10.1.0.0/16"])
def test_a_setting_allows_other_targets(api: Api, settings: Settings, allowed: str) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "http_allowed_hosts": [allowed]}
    subscribe(api, "*", url="http://10.1.2.3/hook")
    wanted = {"url": "http://[10.1.2.3/hook", "events": ["*"]}
    assert api.post("/webhooks/subscriptions", wanted, status=400)["error"]["details"] == {"field": "url"}


def test_nothing_is_sent_where_a_name_leads_to_a_private_address(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as receiver:
        port = int(receiver.url.rstrip("/").rpartition(":")[2])
        here = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]
        number = subscribe(api, "*", url=f"https://hooks.example.org:{port}/")
        with monkeypatch.context() as patched:
            patched.setattr(socket, "getaddrinfo", lambda *_, **__: here)
            with pytest.raises(TargetRefused, match=r"leads to 127\.0\.0\.1"):
                deliver.post(number, EVENT)
        assert not receiver.received


def test_a_receiver_says_when_to_come_again(api: Api, receiver: Receiver) -> None:
    number = subscribe(api, "*", url=receiver.url)
    receiver.answers = [(429, {"Retry-After": "30"})]
    with pytest.raises(RateLimited) as stopped:
        deliver.post(number, EVENT)
    assert (stopped.value.retry_after, stopped.value.key) == (timedelta(seconds=30), f"webhook:{number}")
