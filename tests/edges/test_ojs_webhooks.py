"""Webhooks: who subscribed is told of everything, and what a receiver answers is its own affair."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.utils import timezone

from dispatcher import engine
from dispatcher.calls import Call
from dispatcher.models import CallQueue, Subscription
from dispatcher.web.ojs import hooks
from dispatcher.web.ojs.rows import settled_at
from tests.edges.ojs import Api, another_transaction

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "whsec_very_secret"  # noqa: S105 -- of these tests


def subscribe(api: Api, *events: str, url: str = "https://example.org/hook") -> str:
    """Subscribe to events; return the subscription's id."""
    wanted = {"url": url, "events": events, "secret": SECRET}
    return str(api.post("/webhooks/subscriptions", wanted, status=201)["id"]).removeprefix("sub_")


def posts() -> list[dict[str, Any]]:
    """Return the events that are to be posted, in the order of sending."""
    return [call.args[1] for call in CallQueue.objects.filter(task="dispatcher.post_event").order_by("position")]


# Who is told, and of what


def test_subscribers_are_told_once_and_by_calls_of_their_own(api: Api) -> None:
    api.push()
    wanted = {"url": "https://example.org/hook", "events": ["job.enqueued"], "secret": SECRET}
    made = api.post("/webhooks/subscriptions", wanted, status=201)["subscription"]
    assert made["secret"] == wanted["secret"]
    path = f"/webhooks/subscriptions/{made['id']}"
    assert "secret" not in api.get(path)["subscription"]
    assert hooks.tell() == 0, "what was before is nobody's news"
    job = api.push()
    assert (hooks.tell(), hooks.tell()) == (1, 0)
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
    return lambda: api.post("/workers/ack", {"job_id": job["id"]})


@pytest.mark.parametrize(("deed", "kind"), [(sent, "job.enqueued"), (acked, "job.completed")])
def test_what_a_transaction_holds_back_is_told_when_it_commits(
    api: Api, deed: Callable[[Api], Callable[[], object]], kind: str
) -> None:
    does = deed(api)
    subscribe(api, "job.*")
    with another_transaction(does):
        api.push()
        assert hooks.tell() == 0, "what was stamped before it may still come"
    assert hooks.tell() == 2
    assert {(event["type"], event["data"]["queue"]) for event in posts()} == {
        (kind, "late"),
        ("job.enqueued", "default"),
    }


def test_a_transaction_that_writes_other_things_holds_nothing_back(api: Api) -> None:
    subscribe(api, "job.*")
    with another_transaction(lambda: (User.objects.create(username="ada"), CallQueue.objects.count())):
        api.push()
        assert hooks.tell() == 1


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


def test_however_much_happens_between_two_looks_all_of_it_is_told(api: Api) -> None:
    subscribe(api, "job.enqueued")
    jobs = CallQueue.objects.send_many([Call(task="a.task", queue="many")] * 2_100)
    assert hooks.tell() == 2_100
    assert {event["data"]["job_id"] for event in posts()} == {str(job.id) for job in jobs}


def test_a_failure_is_told_though_the_job_waits_again_or_runs_by_the_next_look(api: Api) -> None:
    subscribe(api, "job.failed", "job.started")
    api.push(options={"retry": {"max_attempts": 3, "initial_interval": "PT0S"}})
    for attempt in range(2):
        engine.tick(now=timezone.now() + timedelta(seconds=1))
        (job,) = api.fetch()
        error = {"code": "handler_error", "message": "no", "attempt": attempt}
        api.post("/workers/nack", {"job_id": job["id"], "error": error})
    engine.tick(now=timezone.now() + timedelta(seconds=1))
    CallQueue.objects.update(id=uuid4(), created_at=timezone.now() - timedelta(days=1))
    hooks.tell()
    assert [event["data"]["attempt"] for event in posts() if event["type"] == "job.failed"] == [1, 2]


def test_a_post_is_signed_as_the_spec_says() -> None:
    # As `openssl dgst -sha256 -hmac secret` says it.
    wanted = "b8569b78799ff9e3cbff0fc2d63a33a2b57f3282abd07c37ae5e8e7d79a5f163"
    assert hooks.signature("secret", "1700000000", "{}") == f"sha256={wanted}"
