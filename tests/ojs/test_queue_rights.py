"""What a token for some queues may do: nothing to the jobs, workers and keys of others."""

from datetime import timedelta
from typing import Any

import arrow
import pytest
from pytest_django import Settings

from dispatcher import api, sql
from dispatcher.models import CallQueue, KeyChange, RateLimitKey, Slot
from dispatcher.ojs.models import PullWorker
from tests.ojs.http_client import Holder, error_of, field_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("open_http"), pytest.mark.django]


def test_a_heartbeat_renews_and_directs_only_what_its_token_may_fetch(holder: Holder) -> None:
    theirs, mine = holder("send:b", "fetch:b", name="b"), holder("send:a", "fetch:a", name="a")
    job, nameless = (theirs.push(options={"queue": "b"})["id"] for _ in range(2))
    theirs.fetch("b", worker_id="theirs")
    theirs.fetch("b")
    until = sorted(Slot.objects.values_list("lease_until", flat=True))
    for body in ({}, {"active_jobs": [job]}, {"state": "terminate"}, {"state": "drain"}):
        for path in ("/workers/heartbeat", "/workers/beat"):
            mine.post(path, {"worker_id": "theirs", **body}, status=403)
    refused = mine.post("/workers/fetch", {"queues": ["a"], "worker_id": "theirs"}, status=403)["error"]
    assert refused["details"] == {"field": "worker_id"}
    assert refused["message"].endswith("do not allow: choose another worker_id.")
    beaten = mine.post("/workers/heartbeat", {"worker_id": "mine", "active_jobs": [job, nameless]})
    assert beaten["jobs_extended"] == []
    assert sorted(Slot.objects.values_list("lease_until", flat=True)) == until
    worker = PullWorker.objects.get(name="theirs")
    assert (worker.state, worker.directive, worker.queues) == ("running", "running", ["b"])
    assert theirs.post("/workers/beat", {"worker_id": "theirs", "active_jobs": [job]})["jobs_extended"] == [job]
    assert theirs.post("/workers/beat", {"worker_id": "theirs", "state": "drain"})["acknowledged"]
    assert PullWorker.objects.get(name="theirs").directive == "quiet"


def test_who_may_fetch_of_some_queues_ends_no_worker_that_has_not_fetched_yet(holder: Holder) -> None:
    holder("fetch:a", name="a").post("/workers/beat", {"worker_id": "new", "state": "terminate"}, status=403)
    assert not PullWorker.objects.exists()
    holder("fetch", name="all").post("/workers/beat", {"worker_id": "new", "state": "terminate"})
    assert PullWorker.objects.get().directive == "terminate"


@pytest.mark.parametrize("until", ["9998-12-31T00:00:00Z", "+P3D"])
def test_a_report_blocks_a_key_for_as_long_as_the_setting_allows_and_says_until_when(
    settings: Settings, holder: Holder, until: str
) -> None:
    settings.DISPATCHER = {"http_max_block": 120}
    RateLimitKey.objects.declare("shared", concurrency=9)
    mine, boss = holder("send:a", "fetch:a", "key:shared"), holder("admin", name="boss")
    error = {"message": "stop", "rate_limit_until": until}
    for row, least, most in ((mine, 115, 120), (boss, 2 * 86_400, 366 * 86_400)):
        mine.push(options={"queue": "a", "keys": ["shared"]})
        (job,) = mine.fetch("a")
        answer = row.post("/workers/nack", {"job_id": job["id"], "error": error})
        blocked_until = RateLimitKey.objects.get(name="shared").blocked_until
        assert blocked_until is not None
        assert least <= (blocked_until - sql.now()).total_seconds() <= most
        assert abs(arrow.get(answer["rate_limit_until"]).datetime - blocked_until) < timedelta(seconds=5)
        api.resume("shared")


OTHERS = [
    ({"rate_limit": {"key": "queue:celery", "concurrency": 0}}, "options.rate_limit.key"),
    ({"rate_limit": {"key": "token:ops", "rate": {"limit": 1, "period": "P366D"}}}, "options.rate_limit.key"),
    ({"rate_limit": {"key": "queue:celery", "max_per_second": 1}}, "options.rate_limit.key"),
    ({"keys": ["queue:celery"]}, "options.keys"),
    ({"keys": ["webhook:1"]}, "options.keys"),
    ({"rate_limit": {"key": "cron:daily", "concurrency": 0}}, "options.rate_limit.key"),
    ({"keys": {"token:ops": 5}}, "options.keys"),
]
"""What a job may name only by one who may do everything; and where."""


@pytest.mark.parametrize(("limits", "field"), OTHERS)
def test_who_may_send_can_neither_make_nor_spend_the_keys_of_tokens_and_other_queues_but_an_administrator_can(
    holder: Holder, limits: dict[str, Any], field: str
) -> None:
    for name in limits.get("keys", ()):
        RateLimitKey.objects.declare(name, rate=(9, 60))
    there = RateLimitKey.objects.count()
    api = holder("send:mail")
    plain, job = ({"type": "a", "args": [], "options": {"queue": "mail", **more}} for more in ({}, limits))
    beside = {"type": "a", "args": [], "queue": "mail", **limits}
    group = {"type": "group", "jobs": [plain, job]}
    for path, body, where in (
        ("/jobs", job, ""),
        ("/jobs", beside, ""),
        ("/jobs/batch", {"jobs": [plain, job]}, "jobs.1."),
        ("/workflows", {"type": "chain", "steps": [plain, group]}, "$.steps[1].jobs[1]."),
        ("/workflows", {"type": "batch", "jobs": [plain], "callbacks": {"on_success": job}}, "$.callbacks.on_success."),
        ("/workflows", {"name": "graph", "steps": [{"id": "one", **job}]}, "$.steps[0]."),
    ):
        error = api.post(path, body, status=403)["error"]
        assert (error["code"], error["details"]["field"]) == ("permission_denied", where + field)
    api.post("/cron", {"name": "x", "cron": "@daily", **job}, status=403)
    assert not CallQueue.objects.exists()
    assert RateLimitKey.objects.count() == there
    holder("admin", name="boss").push(options={"queue": "mail", **limits})


@pytest.mark.parametrize("on_conflict", ["ignore", "replace", "replace_except_schedule", "reject"])
def test_a_unique_job_neither_shows_nor_ends_one_of_a_queue_that_its_sender_may_not_send_to(
    holder: Holder, on_conflict: str
) -> None:
    anothers = holder("send:b", name="b").push(options={"queue": "b", "unique": {"keys": ["type"]}})
    unique = {"keys": ["type"], "on_conflict": on_conflict}
    job = {"type": "mail.send", "args": [], "options": {"queue": "a", "unique": unique}}
    api = holder("send:a", name="a")
    for path, body in (("/jobs", job), ("/jobs/batch", {"jobs": [job]})):
        error = api.post(path, body, status=409)["error"]
        assert (error["code"], [*error["details"]]) == ("duplicate", ["unique_key"])
        assert anothers["id"] not in str(error)
    # A workflow sends later, without a request: it has the rights of the queue that each part names.
    api.post("/workflows", {"type": "group", "jobs": [job]}, status=409)
    assert CallQueue.objects.get().state == "available"
    answer = holder("send:*", name="both").post(
        "/jobs", job, status={"ignore": 200, "reject": 409}.get(on_conflict, 201)
    )
    assert (anothers["id"] in str(answer)) == (not on_conflict.startswith("replace"))


def test_who_may_send_and_not_read_learns_of_a_job_that_was_there_what_it_is_and_no_more(holder: Holder) -> None:
    unique = {"keys": ["type"], "on_conflict": "ignore"}
    options = {"queue": "a", "unique": unique}
    sender, reader = holder("send:a"), holder("send:a", "read:a", name="reader")
    theirs = holder("send:a", name="theirs").push(args=["secret"], meta={"of": "secret"}, options=options)
    CallQueue.objects.update(result="secret")
    kept = {"id": theirs["id"], "type": "mail.send", "queue": "a", "state": "available"}
    job = {"type": "mail.send", "args": [], "options": options}
    assert sender.post("/jobs", job) == {"job": kept, "deduplicated": True}
    batch = {"jobs": [{**job, "type": "new"}, job]}
    new, there = sender.post("/jobs/batch", batch, status=201)["jobs"]
    assert (new["args"], there) == ([], kept)
    assert reader.post("/jobs", job)["job"]["args"] == ["secret"]
    cancelled = sender.ask("DELETE", f"/jobs/{theirs['id']}")["job"]
    assert cancelled == {**kept, "state": "cancelled", "previous_state": "available"}


def test_who_may_send_and_not_read_activates_and_retries_without_a_look_at_the_job(holder: Holder) -> None:
    sender = holder("send:a")
    waits = sender.push(args=["secret"], options={"queue": "a", "pending": True})["id"]
    dead = sender.push(args=["secret"], options={"queue": "a"})["id"]
    CallQueue.objects.filter(id=dead).update(state="discarded", reason="poison", finished_at=sql.now())
    for path in (f"/jobs/{waits}/activate", f"/dead-letter/{dead}/retry"):
        answer = sender.post(path)
        assert answer["job"]["state"] == "available"
        assert "secret" not in str(answer)


def test_a_job_with_the_id_of_one_in_another_queue_learns_nothing_of_that(holder: Holder) -> None:
    there = holder("send:b", name="b").push(options={"queue": "b"})
    job = {"type": "mail.send", "args": [], "id": there["id"], "options": {"queue": "a"}}
    error = holder("send:a", name="a").post("/jobs", job, status=409)["error"]
    assert (error["code"], error["details"]) == ("duplicate", {})
    error = holder("send:a", "send:b", name="both").post("/jobs", job, status=409)["error"]
    assert error["details"] == {"existing_job_id": there["id"], "existing_job_state": "available"}


def test_who_may_send_to_a_queue_may_limit_it_and_make_keys_of_no_queue(holder: Holder) -> None:
    api = holder("send:mail", "key:s*")
    api.push(options={"queue": "mail", "rate_limit": {"max_per_second": 5}})
    limits = {"key": "smtp", "concurrency": 5, "rate": {"limit": 1, "period": "P1D"}}
    api.push(options={"queue": "mail", "rate_limit": limits, "keys": ["queue:mail"]})
    assert RateLimitKey.objects.get(name="queue:mail").rate_limit == 5
    smtp = RateLimitKey.objects.get(name="smtp")
    assert (smtp.concurrency, smtp.rate_period) == (5, timedelta(days=1))


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 0, "key": "queue:mail"}, "concurrency"),
        ({"rate": {"limit": 1, "period": "P365D"}}, "rate.period"),
        ({"rate": {"limit": 5, "period": "PT24H1S"}}, "rate.period"),
        ({"throttle": {"limit": 1, "period": "P2D"}}, "throttle.period"),
    ],
)
def test_who_is_first_to_name_a_shared_key_can_t_stop_it_for_all(
    holder: Holder, limits: dict[str, Any], field: str
) -> None:
    job = {"type": "a", "args": [], "options": {"queue": "mail", "rate_limit": {"key": "shared", **limits}}}
    api = holder("send:mail", "key:s*")
    for path, body, where in (
        ("/jobs", job, ""),
        ("/jobs/batch", {"jobs": [job]}, "jobs.0."),
        ("/workflows", {"type": "chain", "steps": [job]}, "$.steps[0]."),
    ):
        assert field_of(api.post(path, body, status=400)) == f"{where}options.rate_limit.{field}"
    assert not RateLimitKey.objects.filter(name__in=["shared", "queue:mail"]).exists()
    holder("admin", name="boss").post("/jobs", job, status=201)


def test_who_makes_a_key_over_http_is_recorded_once(holder: Holder) -> None:
    api = holder("send:mail", "key", name="ada")

    def options(key: str, **more: Any) -> dict[str, Any]:
        return {"queue": "mail", "rate_limit": {"key": key, "concurrency": 2}, **more}

    for _ in range(2):
        api.push(options=options("plain"))
    # Sent in a transaction: the key is made after its commit.
    api.push(options=options("placed", unique={"keys": ["type", "args"]}))
    chain = {"type": "chain", "steps": [{"type": "a", "args": [], "options": options("step")}]}
    number = api.post("/workflows", chain, status=201)["workflow"]["id"]
    changes = KeyChange.objects.order_by("id").values_list("key", "verb", "actor", "source")
    by = {"plain": "token:ada", "placed": "token:ada", "step": f"workflow:{number}"}
    assert [*changes] == [(key, "make", actor, "http") for key, actor in by.items()]
    assert KeyChange.objects.filter(before={}, after__concurrency=2).count() == 3


NAMED = {
    "the key of its limit": lambda key: {"rate_limit": {"key": key, "concurrency": 1}},
    "a key": lambda key: {"keys": [key]},
    "a key with its cost": lambda key: {"keys": {key: 2}},
}


@pytest.mark.parametrize("name_it", NAMED.values(), ids=NAMED)
@pytest.mark.parametrize(
    ("scopes", "allowed", "refused"),
    [
        (("send:a",), (), ("openai", "smtp", "openai:*")),
        (("send:a", "key:openai*"), ("openai", "openai:tokens", "openai:*"), ("smtp", "open*")),
        (("send:a", "key:openai:?"), ("openai:1",), ("openai:12", "openai:*", "openai")),
        (("send:a", "key"), ("openai", "openai:*"), ("queue:b", "token:me")),
        (("send:a", "send"), ("openai",), ("queue:b",)),
        (("send:a", "read", "fetch"), (), ("openai",)),
    ],
    ids=" ".join,
)
def test_who_sends_to_some_queues_names_the_keys_of_its_scopes(
    holder: Holder, scopes: tuple[str, ...], allowed: tuple[str, ...], refused: tuple[str, ...], name_it: Any
) -> None:
    for name in ("openai", "smtp", "openai:1", "openai:12", "openai:tokens"):
        RateLimitKey.objects.declare(name, concurrency=9)
    row = holder(*scopes)
    for key in refused:
        body = {"type": "a", "args": [], "options": {"queue": "a", **name_it(key)}}
        for path, sent in (("/jobs", body), ("/jobs/batch", {"jobs": [body]}), ("/workflows", chain(body))):
            status = 400 if key.endswith("*") and "rate_limit" in body["options"] else 403
            answer = row.post(path, sent, status=status)
            assert key in answer["error"]["message"] or status == 400
    assert not CallQueue.objects.exists()
    for key in allowed:
        if "rate_limit" not in name_it(key) or not key.endswith("*"):
            row.push(options={"queue": "a", **name_it(key)})
    # The key of its own queue is no other's.
    row.push(options={"queue": "a", "rate_limit": {"max_per_second": 5}, "keys": ["queue:a"]})


def chain(job: dict[str, Any]) -> dict[str, Any]:
    return {"type": "chain", "steps": [job]}


def test_who_names_an_unknown_key_is_shown_no_other(holder: Holder) -> None:
    RateLimitKey.objects.declare("tenant:acme", concurrency=1)
    job = {"type": "a", "args": [], "options": {"queue": "a", "keys": ["tenant:acm"]}}
    refused = holder("send:a", "key:tenant:acm").post("/jobs", job, status=400)
    assert "'tenant:acm'" in error_of(refused)[1]
    assert "tenant:acme" not in str(refused)
