"""Queues, rate limits, workers and dead letters over HTTP."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dispatcher.engine import workers
from dispatcher.lifecycle.claim import claim
from dispatcher.limits.policy import stored
from dispatcher.models import CallQueue, KeyChange, Queue, RateLimitKey
from dispatcher.reports import rate_limit_status
from dispatcher.request import Call
from dispatcher.states import State
from tests.builders import HERE
from tests.ojs.http_client import Api, another_transaction, field_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("open_http"), pytest.mark.django]


# Queues


def test_the_queues_of_celery_are_listed_too(api: Api) -> None:
    workers.record_heartbeat(replace(HERE, queues=["celery", "mail", "dispatcher"]), [])
    api.push(options={"queue": "fetched"})
    served = {"celery": "celery", "fetched": "http", "mail": "celery"}
    assert {queue["name"]: queue["served_by"] for queue in api.get("/queues")["queues"]} == served
    assert {queue["name"]: queue["served_by"] for queue in api.get("/admin/queues")["items"]} == served


def test_celery_s_queues_are_not_fetched_from_and_pulled_ones_not_sent_to_celery(api: Api) -> None:
    CallQueue.objects.send("noop", queue="celery")
    job = api.push(options={"queue": "celery"})
    assert CallQueue.objects.get(id=job["id"]).state == State.DISPATCHED
    answer = api.post("/workers/fetch", {"queues": ["mail", "celery"]}, status=422)
    assert "Celery" in answer["error"]["message"]
    assert api.get(f"/jobs/{job['id']}")["job"]["state"] == "active"
    assert {each["name"]: each["served_by"] for each in api.get("/queues")["queues"]} == {"celery": "celery"}


def test_the_stats_of_a_queue_say_that_it_is_paused(api: Api) -> None:
    api.post("/queues/default/pause")
    api.push()
    reply = api.get("/queues/default/stats")
    assert (reply["queue"]["available"], reply["stats"]["depth"], reply["status"]) == (1, 1, "paused")
    api.get("/queues/unheard/stats", status=404)


def test_the_stats_of_a_queue_say_how_many_jobs_could_start_and_a_job_why_it_waits(api: Api) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    jobs = [api.push(options={"keys": {"api": 1}}) for _ in range(3)]
    runnable = api.get("/queues/default/stats")["runnable"]
    assert (runnable["count"], runnable["counts_up_to"], runnable["active"]) == (1, 1000, 0)
    assert "fetches it over HTTP" in api.get(f"/jobs/{jobs[0]['id']}")["job"]["why_waiting"]
    (fetched,) = api.post("/workers/fetch", {"queues": ["default"], "count": 3})["jobs"]
    assert api.get("/queues/default/stats")["runnable"] == {
        "count": 0,
        "counts_up_to": 1000,
        "oldest_since": None,
        "active": 1,
    }
    waits = api.get(f"/jobs/{jobs[1]['id']}")["job"]["why_waiting"]
    assert waits.startswith("The key api stops its lane; it is the first of its lane.")
    assert "why_waiting" not in api.get(f"/jobs/{fetched['id']}")["job"]


def bound(api: Api, depth: int, **more: Any) -> None:
    api.ask("PUT", "/admin/queues/default/config", {"backpressure": {"max_depth": depth, **more}})


def test_a_full_queue_refuses_more(api: Api) -> None:
    bound(api, 2)
    api.push()
    api.push(options={"scheduled_at": "2099-01-01T00:00:00Z"})
    assert api.last.headers["X-OJS-Queue-Pressure"] == "1.00"
    answer = api.post("/jobs", {"type": "a", "args": []}, status=429)
    assert (answer["error"]["code"], answer["error"]["retryable"]) == ("QUEUE_FULL", True)
    assert {"Retry-After", "X-OJS-Queue-Depth", "X-OJS-Queue-Bound"} <= set(api.last.headers)
    api.post("/jobs/batch", {"jobs": [{"type": "a", "args": []}]}, status=429)
    assert CallQueue.objects.count() == 2
    api.fetch()
    api.push()


def test_a_queue_far_from_its_bound_takes_more_without_a_word_about_its_depth(api: Api) -> None:
    bound(api, 10**9)
    api.push()
    assert "X-OJS-Queue-Depth" not in api.last.headers
    assert CallQueue.objects.count() == 1


def test_a_full_queue_can_drop_its_oldest(api: Api) -> None:
    bound(api, 2, strategy="drop_oldest")
    first, second, third = (api.push() for _ in range(3))
    assert api.get(f"/jobs/{first['id']}")["job"]["reason"] == "queue_full"
    assert [job["id"] for job in api.fetch(count=5)] == [second["id"], third["id"]]


def test_a_full_queue_can_have_senders_wait(api: Api) -> None:
    bound(api, 1, strategy="block")
    api.push()
    api.post("/jobs", {"type": "a", "args": []}, status=429)
    api.post("/jobs", {"type": "a", "args": []}, status=429, **{"OJS-Block-Timeout": "0.2"})


@pytest.mark.parametrize("wait", ["soon", "nan", "inf", "-inf", ""])
def test_a_sender_waits_for_a_number_of_seconds(api: Api, wait: str) -> None:
    answer = api.post("/jobs", {"type": "a", "args": []}, status=400, **{"OJS-Block-Timeout": wait})
    assert answer["error"]["details"]["field"] == "OJS-Block-Timeout"
    assert not Queue.objects.exists()


def test_who_serves_a_queue_does_not_change_under_running_jobs(api: Api) -> None:
    api.push()
    api.fetch()
    api.ask("PUT", "/admin/queues/default/config", {"delivery": "broker"}, status=409)
    api.post("/workers/ack", {"job_id": api.get("/admin/jobs")["items"][0]["id"]})
    assert api.ask("PUT", "/admin/queues/default/config", {"delivery": "broker"})["served_by"] == "celery"


def test_the_weight_of_a_direct_queue_is_configured(api: Api) -> None:
    path = "/admin/queues/default/config"
    refused = api.ask("PUT", path, {"weight": 3}, status=400)
    assert refused["error"]["details"]["field"] == "weight"
    assert "direct" in refused["error"]["message"]
    assert not Queue.objects.exists()
    assert api.ask("PUT", path, {"weight": 3, "delivery": "direct"})["configuration"]["weight"] == 3
    api.ask("PUT", path, {"backpressure": {"max_depth": 5}})
    assert api.get("/admin/queues/default")["configuration"]["weight"] == 3
    for weight in (0, 1001, 1.5):
        assert field_of(api.ask("PUT", path, {"weight": weight}, status=400)) == "weight"
    for delivery in ("broker", "http"):
        assert field_of(api.ask("PUT", path, {"delivery": delivery}, status=400)) == "weight"
    assert api.ask("PUT", path, {"delivery": "http", "weight": 1})["served_by"] == "http"


# Rate limits


@pytest.mark.parametrize(
    ("given", "key", "rate"),
    [
        ({"key": "api", "rate": {"limit": 1, "period": "PT1M"}}, "api", {"limit": 1, "period": "PT1M"}),
        ({"key": "api", "rate": 1, "period": "minute"}, "api", {"limit": 1, "period": "PT1M"}),
        ({"max_per_second": 1}, "queue:default", {"limit": 1, "period": "PT1S"}),
    ],
)
def test_three_dialects_of_a_rate_limit_mean_the_same(
    api: Api, given: dict[str, Any], key: str, rate: dict[str, Any]
) -> None:
    for _ in range(2):
        api.push(options={"rate_limit": given})
    assert len(api.fetch(count=2)) == 1
    reply = api.get(f"/rate-limits/{key}")
    assert {name: reply["rate"][name] for name in rate} == rate
    assert reply["waiting_count"] == 1
    assert reply["waiting_since"]
    # A second may pass between two requests.
    if rate["period"] != "PT1S":
        assert reply["rate"]["current_count"] == 1
        assert api.fetch(count=2) == []


def test_what_counts_against_a_rate_is_the_same_in_every_report(api: Api) -> None:
    RateLimitKey.objects.declare("api", rate=(5, 60))
    CallQueue.objects.send_many([Call(task="t", keys=["api"]) for _ in range(3)])
    (first, *_) = CallQueue.objects.all()
    claim(first.id, first.ticket)
    (status,) = rate_limit_status(["api"])
    reply = api.get("/rate-limits/api")
    assert reply["rate"]["current_count"] == status.as_json()["rate"]["current_count"] == 3


def test_a_key_has_one_json_form(api: Api) -> None:
    RateLimitKey.objects.declare("api", concurrency=2)
    api.ask("PUT", "/rate-limits/api", {"rate": {"limit": 5, "period": "PT60S"}, "expires_at": "+PT60S"})
    (status,) = rate_limit_status(["api"])
    reply = api.get("/rate-limits/api")
    assert reply["own_limits"] == {"concurrency": 2}
    assert {**reply, "rate": None, "own_limits": None} == {
        name: value for name, value in status.as_json().items() if value is not None
    } | {"rate": None, "own_limits": None}


def test_a_key_is_overridden_for_a_time_and_back(api: Api) -> None:
    api.push(options={"rate_limit": {"key": "api", "concurrency": 5}})
    reply = api.ask("PUT", "/rate-limits/api", {"concurrency": 0, "expires_at": "+PT60S"})
    assert (reply["concurrency"]["limit"], bool(reply["override_expires_at"])) == (0, True)
    assert api.fetch() == []
    assert reply["oversized_count"] == 0
    assert api.ask("DELETE", "/rate-limits/api")["concurrency"] == {"limit": 5, "active": 0, "available": 5}
    assert len(api.fetch()) == 1
    listed = api.get("/rate-limits?per_page=1")
    assert (listed["items"][0]["key"], listed["pagination"]["total"]) == ("api", RateLimitKey.objects.count())
    api.ask("PUT", "/rate-limits/api", {"concurrency": 1, "expires_at": "2001-01-01T00:00:00Z"}, status=400)
    api.ask("PUT", "/rate-limits/api", {}, status=400)
    api.ask("PUT", "/rate-limits/unheard", {"concurrency": 1}, status=404)


def queue_limits() -> tuple[int | None, str, str]:
    policy = stored(RateLimitKey.objects.get(name="queue:default"))
    return policy.concurrency, str(policy.rate), str(policy.throttle)


def test_limits_of_a_queue_that_are_not_named_stay_and_null_takes_one_away(api: Api) -> None:
    config, limits = "/admin/queues/default/config", "/admin/queues/default/rate-limit"
    rate = {"limit": 10, "period": "PT1M"}
    for path, wanted, left in (
        (limits, {"rate": rate, "throttle": {"limit": 1, "period": "PT1S"}}, (None, "10/PT1M", "1/PT1S")),
        (config, {"concurrency": 5}, (5, "10/PT1M", "1/PT1S")),
        (config, {"rate_limit": {**rate, "limit": 20}}, (5, "20/PT1M", "1/PT1S")),
        (config, {"rate_limit": {"rate": rate, "throttle": None}}, (5, "10/PT1M", "None")),
        (config, {"concurrency": None, "rate_limit": None}, (5, "10/PT1M", "None")),
        (limits, {"concurrency": None}, (None, "10/PT1M", "None")),
        (limits, {"rate": None}, (None, "None", "None")),
    ):
        api.ask("PUT", path, wanted)
        assert queue_limits() == left


@pytest.mark.parametrize(
    ("path", "wanted", "field"),
    [
        ("config", {"rate_limit": {"limit": 100, "period": "1 minute"}}, "rate_limit.period"),
        ("config", {"rate_limit": {"limit": 0, "period": "PT1M"}}, "rate_limit.limit"),
        ("config", {"rate_limit": {"limit": 1, "period": "P400D"}}, "policy.rate.period"),
        ("config", {"rate_limit": {"limit": 1}}, "rate_limit"),
        ("config", {"rate_limit": {"limit": 1, "period": "PT1M", "rate": None}}, "rate_limit"),
        ("config", {"rate_limit": {"max_per_second": 5}}, "rate_limit.max_per_second"),
        ("config", {"rate_limit": {}}, "rate_limit"),
        ("config", {"rate_limit": {"limit": None}}, "rate_limit"),
        ("config", {"rate_limit": {"rate": {"limit": 1, "period": "PT1M", "burst": 9}}}, "rate_limit.rate.burst"),
        ("config", {"concurrency": 1, "rate_limit": {"concurrency": None}}, "rate_limit.concurrency"),
        ("config", {"rate": {"limit": 1, "period": "PT1M"}}, "rate"),
        ("rate-limit", {"limit": 10, "period": "PT1S"}, "limit"),
        ("rate-limit", {"rate": {"limit": 1, "period": "P400D"}}, "policy.rate.period"),
        ("rate-limit", {}, "concurrency"),
    ],
)
def test_a_limit_that_is_not_understood_leaves_the_queue_as_it_is(
    api: Api, path: str, wanted: dict[str, Any], field: str
) -> None:
    api.ask("PUT", "/admin/queues/default/rate-limit", {"concurrency": 3, "rate": {"limit": 7, "period": "PT1M"}})
    bound(api, 5)
    for queue in ("default", "unheard"):
        more = {"backpressure": {"max_depth": 9}} if path == "config" else {}
        assert field_of(api.ask("PUT", f"/admin/queues/{queue}/{path}", {**more, **wanted}, status=400)) == field
    assert queue_limits() == (3, "7/PT1M", "None")
    assert [(queue.name, queue.max_depth) for queue in Queue.objects.all()] == [("default", 5)]


def test_an_override_that_is_not_understood_is_refused(api: Api) -> None:
    RateLimitKey.objects.declare("api", concurrency=5)
    answer = api.ask("PUT", "/rate-limits/api", {"concurrency": 0, "expire_at": "+PT60S"}, status=400)
    assert answer["error"]["details"]["field"] == "expire_at"
    assert api.get("/rate-limits/api")["concurrency"]["limit"] == 5


def test_a_key_is_observed_and_enforced_again(api: Api) -> None:
    RateLimitKey.objects.declare("api", concurrency=1)
    CallQueue.objects.send_many([Call("t", keys={"api": 1})] * 2)
    answer = api.ask("PATCH", "/rate-limits/api", {"observe": True, "reason": "first week"})
    assert (answer["state"], answer["oversized_count"]) == ("observed", 0)
    change = KeyChange.objects.latest("id")
    assert (change.key, change.source, change.reason) == ("api", "http", "first week")
    assert stored(RateLimitKey.objects.get(name="api")).concurrency == 1
    api.ask("POST", "/queues/celery/pause", {})
    CallQueue.objects.send("t", keys={"api": 2})
    assert api.ask("PATCH", "/rate-limits/api", {"observe": False})["oversized_count"] == 1
    assert not stored(RateLimitKey.objects.get(name="api")).observe
    api.ask("PATCH", "/rate-limits/api", {}, status=400)
    api.ask("PATCH", "/rate-limits/unheard", {"observe": True}, status=404)


# Workers


def test_a_worker_that_drains_gives_its_jobs_back_and_gets_nothing_more(api: Api) -> None:
    api.push()
    (job,) = api.fetch(worker_id="one")
    assert api.get("/workers/one/health")["state"] == "running"
    # What it has not begun waits again.
    body = {"job_id": job["id"], "worker_id": "one", "requeue": True, "error": {"message": "ending"}}
    assert api.post("/workers/nack", body)["state"] == "available"
    assert api.post("/workers/beat", {"worker_id": "one", "state": "drain", "active_jobs": 0})["acknowledged"] is True
    assert api.fetch(worker_id="one") == []
    api.get("/workers/one/health", status=503)
    assert api.fetch(worker_id="two")[0]["attempt"] == 1


def test_an_administrator_sets_the_directive_of_a_worker(api: Api) -> None:
    api.push()
    api.fetch(worker_id="one")
    assert api.get("/admin/workers")["summary"]["total"] == 1
    assert len(api.get("/admin/workers/one")["jobs"]) == 1
    api.post("/admin/workers/one/quiet")
    assert api.post("/workers/heartbeat", {"worker_id": "one"})["state"] == "quiet"
    api.push()
    assert api.fetch(worker_id="one") == []
    api.post("/admin/workers/unheard/quiet", status=404)
    api.post("/admin/workers/one/dance", status=404)


@pytest.mark.parametrize("strategy", ["round-robin", "weighted"])
def test_a_pool_looks_at_its_queues_in_turns(api: Api, strategy: str) -> None:
    queues = {"queues": {"a": {"weight": 1}, "b": {"weight": 1}}, "strategy": strategy}
    assert api.ask("PUT", "/admin/pools/mine", queues, status=201)["pool"]["strategy"] == strategy
    api.ask("PUT", "/admin/pools/mine", queues)
    assert [pool["name"] for pool in api.get("/admin/pools")["items"]] == ["mine"]
    jobs = [{"type": "t", "args": [], "options": {"queue": queue}} for queue in ("a", "b") for _ in range(40)]
    api.post("/jobs/batch", {"jobs": jobs}, status=201)
    first = [api.fetch("a", "b", pool="mine")[0]["queue"] for _ in range(40)]
    assert set(first) == {"a", "b"}
    assert {api.fetch("a", "b")[0]["queue"] for _ in range(5)} == {"a"}


# Dead letters and the administrators' views


def test_dead_letters_are_those_that_asked_for_it(api: Api) -> None:
    for policy in ("dead_letter", "discard"):
        job = api.taken(options={"retry": {"max_attempts": 1, "on_exhaustion": policy}})
        api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no", "type": "smtp"}})
    (letter,) = api.get("/dead-letter?queue=default&type=mail.send")["jobs"]
    counts = {"total": 1, "total_is_exact": True, "by_queue": {"default": 1}, "by_error_type": {"smtp": 1}}
    times = {"oldest_at": 0, "newest_at": 0}
    assert api.get("/dead-letter/stats") | times == counts | times
    assert api.get("/admin/dead-letter/stats")["total"] == 1
    again = api.post(f"/dead-letter/{letter['id']}/retry")["job"]
    assert (again["state"], again["attempt"], len(again["errors"])) == ("available", 0, 1)
    api.post(f"/dead-letter/{letter['id']}/retry", status=404)


def test_many_jobs_are_changed_at_once_only_if_that_is_said_twice(api: Api) -> None:
    for _ in range(3):
        api.push()
    api.post("/admin/jobs/bulk/cancel", {"filter": {"queue": "default"}}, status=400)
    reply = api.post("/admin/jobs/bulk/cancel", {"filter": {"queue": "default"}, "confirm": True})
    assert (reply["matched"], reply["succeeded"]) == (3, 3)
    assert api.post("/admin/jobs/bulk/retry", {"filter": {"state": "cancelled"}, "confirm": True})["succeeded"] == 3
    api.ask("DELETE", "/admin/queues/default/jobs", {"states": ["available"]}, status=400)
    purged = api.ask("DELETE", "/admin/queues/default/jobs", {"states": ["available"], "confirm": True})
    assert (purged["purged_count"], CallQueue.objects.filter(state="cancelled").count()) == (3, 3)
    assert api.post("/admin/jobs/bulk/delete", {"filter": {}, "confirm": True})["succeeded"] == 3
    api.post("/admin/jobs/bulk/dance", {"confirm": True}, status=404)


def done(api: Api) -> str:
    job = api.taken()
    api.ack(job)
    return str(job["id"])


def test_a_purge_spares_what_ended_later_and_what_has_not_ended(api: Api) -> None:
    long_done, just_done, waiting = done(api), done(api), api.push()["id"]
    CallQueue.objects.filter(id=long_done).update(finished_at=datetime(2019, 1, 1, tzinfo=UTC))
    wanted = {"states": ["completed", "available"], "older_than": "2020-01-01T00:00:00Z", "confirm": True}
    for purged in (1, 0):
        assert api.ask("DELETE", "/admin/queues/default/jobs", wanted)["purged_count"] == purged
        assert {str(call.id) for call in CallQueue.objects.all()} == {just_done, waiting}
    assert api.get(f"/jobs/{waiting}")["job"]["state"] == "available"


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"filter": {"state": ["discarded"]}}, "filter.state"),
        ({"filter": {"state": "lost"}}, "filter.state"),
        ({"filter": {"queues": "mail"}}, "filter.queues"),
        ({"filter": {"queue": ["mail"]}}, "filter.queue"),
        ({"filter": {"queue": None}}, "filter.queue"),
        ({"filter": {"queue": ""}}, "filter.queue"),
        ({"filter": {"since": "yesterday"}}, "filter.since"),
        ({"filter": None}, "filter"),
        ({"filter": {"queue": "mail"}, "older_than": "2020-01-01T00:00:00Z"}, "older_than"),
        ({"filters": {"queue": "mail"}}, "filters"),
        ({}, "filter"),
    ],
)
def test_a_filter_that_is_not_understood_chooses_nothing(api: Api, wanted: dict[str, Any], field: str) -> None:
    done(api)
    api.push()
    for action in ("cancel", "retry", "delete"):
        assert field_of(api.post(f"/admin/jobs/bulk/{action}", {**wanted, "confirm": True}, status=400)) == field
    assert sorted(CallQueue.objects.values_list("state", flat=True)) == ["available", "completed"]


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"states": ["completed"], "older_then": "2020-01-01T00:00:00Z"}, "older_then"),
        ({"states": ["completed"], "older_than": "long ago"}, "older_than"),
        ({"states": ["completed"], "older_than": None}, "older_than"),
        ({"states": ["completed", "lost"]}, "states.1"),
        ({"states": []}, "states"),
        ({}, "states"),
    ],
)
def test_a_purge_that_is_not_understood_deletes_nothing(api: Api, wanted: dict[str, Any], field: str) -> None:
    done(api)
    assert field_of(api.ask("DELETE", "/admin/queues/default/jobs", {**wanted, "confirm": True}, status=400)) == field
    assert CallQueue.objects.count() == 1


def test_many_jobs_are_changed_oldest_first_past_those_that_can_t_be(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.ojs.views.admin._BUDGET_S", 60.0)
    api.post("/jobs/batch", {"jobs": [{"type": "a", "args": []}] * 1_000}, status=201)
    (taken,) = api.fetch()
    late = [api.push()["id"] for _ in range(2)]
    api.ack(taken)
    for action, count, has_more in (("delete", 1, False), ("cancel", 1_000, True), ("cancel", 1, False)):
        reply = api.post(f"/admin/jobs/bulk/{action}", {"filter": {}, "confirm": True})
        assert (reply["matched"], reply["succeeded"], reply["has_more"]) == (count, count, has_more)
        assert ("next_cursor" in reply) == has_more
    api.get(f"/jobs/{taken['id']}", status=404)
    assert api.get(f"/jobs/{late[0]}")["job"]["state"] == "cancelled"


def test_the_administrators_see_all_in_numbers(api: Api) -> None:
    job = api.push(options={"queue": "mail"})
    api.push()
    api.fetch()
    stats = api.get("/admin/stats")
    assert (stats["queues"], stats["jobs"]["available"], stats["jobs"]["active"]) == (2, 1, 1)
    assert [queue["name"] for queue in api.get("/admin/queues")["items"]] == ["default", "mail"]
    assert api.get("/admin/jobs?queue=mail&type=mail.*&state=available")["items"][0]["id"] == job["id"]
    assert api.get(f"/admin/jobs/{job['id']}")["queue"] == "mail"
    assert api.post(f"/admin/jobs/{job['id']}/cancel")["state"] == "cancelled"
    assert api.post(f"/admin/jobs/{job['id']}/retry")["state"] == "available"
    api.post(f"/admin/jobs/{job['id']}/retry", status=409)
    api.get("/admin/jobs?state=lost", status=400)


def test_a_configuration_waits_for_a_lock_with_a_bound(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatcher.sql.PATIENCE", timedelta(seconds=0.1))
    Queue.objects.create(name="mail")
    with another_transaction(lambda: Queue.objects.filter(name="mail").update(warn_at=0.5)):
        refused = api.ask("PUT", "/admin/queues/mail/config", {"weight": 2, "concurrency": 1}, status=503)
    assert refused["error"]["retryable"]
    assert "Another transaction has locked" in refused["error"]["message"]
    assert not RateLimitKey.objects.exists()
    api.ask("PUT", "/admin/queues/mail/config", {"weight": 2})
    assert Queue.objects.values_list("weight", "warn_at").get() == (2, 0.5)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/queues/mail/pause", {}),
        ("POST", "/queues/mail/resume", {}),
        ("PUT", "/admin/queues/mail/rate-limit", {"concurrency": 1}),
        ("PUT", "/rate-limits/queue:mail", {"concurrency": 1}),
        ("PATCH", "/rate-limits/queue:mail", {"observe": True}),
        ("DELETE", "/rate-limits/queue:mail", None),
    ],
    ids=["pause", "resume", "limit", "override", "observe", "end-override"],
)
def test_a_change_of_a_key_waits_for_a_lock_with_a_bound(
    api: Api, monkeypatch: pytest.MonkeyPatch, method: str, path: str, body: Any
) -> None:
    monkeypatch.setattr("dispatcher.sql.PATIENCE", timedelta(seconds=0.05))
    key = RateLimitKey.objects.declare("queue:mail", concurrency=5)
    with another_transaction(lambda: RateLimitKey.objects.select_for_update().get(pk=key.pk)):
        refused = api.ask(method, path, body, status=503)
    assert refused["error"]["retryable"]
    assert "has locked the rate limit key 'queue:mail'" in refused["error"]["message"]


def test_an_unknown_field_is_refused_with_the_names_of_those_there_are(api: Api) -> None:
    refused = api.ask("PUT", "/admin/queues/mail/config", {"wieght": 2, "rate_limit": {"rat": 1}}, status=400)
    first, second = refused["error"]["details"]["validation_errors"]
    assert (first["path"], second["path"]) == ("$.rate_limit.rat", "$.wieght")
    assert second["message"].endswith("there are backpressure, concurrency, rate_limit, delivery, weight.")
    assert first["message"].endswith("there are concurrency, per_worker, rate, throttle, limit, period.")
    assert field_of(api.ask("PUT", "/admin/queues/mail/config", {"weight": 1001}, status=400)) == "weight"
