"""The Open Job Spec over HTTP: what is asked, what is answered, and who may."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import uuid_utils
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from pytest_django import Settings

from dispatcher import engine
from dispatcher.models import ApiToken, CallQueue, Queue, RateLimitKey
from dispatcher.states import State
from dispatcher.web.ojs.access import make_token
from tests.edges.ojs import MEDIA, Api, error_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("open_http")]

# What every answer has


def test_every_answer_has_the_spec_s_headers(api: Api) -> None:
    api.push()
    assert api.last.headers["Content-Type"] == MEDIA
    assert api.last.headers["OJS-Version"] == "1.0"
    assert api.last.headers["X-Request-Id"].startswith("req_")
    assert api.last.headers["Location"].startswith("/ojs/v1/jobs/")
    api.get("/health", **{"X-Request-Id": "mine-1"})
    assert api.last.headers["X-Request-Id"] == "mine-1"


def test_a_fault_of_the_request_is_an_error_object(api: Api) -> None:
    for method, path, body, status, code in (
        ("POST", "/jobs", b"{", 400, "invalid_payload"),
        ("POST", "/jobs", b"", 400, "invalid_payload"),
        ("POST", "/jobs", b"[]", 400, "invalid_payload"),
        ("POST", "/jobs", b'{"type": "a", "args": [NaN]}', 400, "invalid_payload"),
        ("POST", "/jobs", {"args": []}, 400, "invalid_request"),
        ("PATCH", "/jobs", {}, 405, "invalid_request"),
        ("GET", "/nowhere", None, 404, "not_found"),
        ("GET", f"/jobs/{uuid4()}", None, 404, "not_found"),
        ("GET", "/jobs/nonsense", None, 404, "not_found"),
        ("GET", "/dead-letter?limit=x", None, 400, "invalid_request"),
        ("GET", "/dead-letter?cursor=%00", None, 400, "invalid_request"),
    ):
        answer = api.ask(method, path, body, status=status)
        assert error_of(answer)[0] == code, path
        assert answer["error"]["request_id"] == api.last.headers["X-Request-Id"]
        assert answer["error"]["retryable"] is False
        assert answer["error"]["message"]


def test_other_versions_and_media_types_are_refused(api: Api) -> None:
    api.post("/jobs", {"type": "a", "args": []}, status=422, **{"OJS-Version": "2.0"})
    api.post("/jobs", {"type": "a", "args": []}, status=400, content_type="text/plain")
    api.post("/jobs", {"type": "a", "args": []}, status=201, content_type="application/json; charset=utf-8")


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"type": "Mail"}, "type"),
        ({"type": "mail send"}, "type"),
        ({"type": "a" * 300}, "type"),
        ({"args": {}}, "args"),
        ({"args": None}, "args"),
        ({"id": str(uuid4())}, "id"),
        ({"meta": []}, "meta"),
        ({"options": {"queue": "Mail"}}, "options.queue"),
        ({"options": {"priority": 101}}, "options.priority"),
        ({"options": {"priority": "1"}}, "options.priority"),
        ({"options": {"expires_at": "tomorrow"}}, "options.expires_at"),
        ({"options": {"scheduled_at": "2030-01-01T00:00:00"}}, "options.scheduled_at"),
        ({"options": {"timeout_ms": -1}}, "options.timeout_ms"),
        ({"options": {"rate_limit": {"key": "a b"}}}, "options.rate_limit.key"),
        ({"options": {"rate_limit": {"key": "a", "rate": {"limit": 1}}}}, "options.rate_limit.rate"),
        ({"options": {"rate_limit": {"key": "a", "what": 1}}}, "options.rate_limit.what"),
        ({"options": {"rate_limit": {"concurrency": 1}}}, "rate_limit.key"),
        ({"options": {"keys": ["not-declared"]}}, "keys"),
        ({"options": {"unique": {"keys": ["meta"]}}}, "options.unique.meta_keys"),
        ({"options": {"unique": {"args_keys": ["to"]}}}, "options.unique.args_keys"),
        ({"options": {"unique": {"on_conflict": "x"}}}, "options.unique.on_conflict"),
    ],
)
def test_a_bad_job_is_refused_by_the_name_of_its_field(api: Api, job: dict[str, Any], field: str) -> None:
    answer = api.post("/jobs", {"type": "mail.send", "args": [], **job}, status=400)
    assert field in answer["error"]["message"]
    assert not CallQueue.objects.exists()


def test_a_bad_retry_policy_is_a_validation_error(api: Api) -> None:
    retry = {"max_attempts": -1}
    answer = api.post("/jobs", {"type": "a", "args": [], "options": {"retry": retry}}, status=422)
    assert answer["error"]["type"] == "validation_error"
    assert "max_attempts" in answer["error"]["message"]


def test_what_is_too_large_is_refused(api: Api, settings: Settings) -> None:
    settings.DISPATCHER = {"http_anonymous": ["admin"], "max_payload_bytes": 1_000}
    assert (
        "max_payload_bytes" in api.post("/jobs", {"type": "a", "args": ["x" * 2_000]}, status=413)["error"]["message"]
    )
    assert (
        "meta"
        in api.post("/jobs", {"type": "a", "args": [], "meta": {"x": "x" * 70_000}}, status=413)["error"]["message"]
    )
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    answer = api.post("/jobs", {"type": "a", "args": ["x" * 200]}, status=413)
    assert answer["error"]["code"] == "envelope_too_large"
    deep: list[Any] = []
    for _ in range(100):
        deep = [deep]
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100_000
    api.post("/jobs", {"type": "a", "args": deep}, status=400)


def test_what_can_t_be_stored_is_refused_and_what_looks_like_it_is_not(api: Api) -> None:
    for text in (r'"\u0000"', r'"\\\u0000"', r'"\ud800"'):
        api.post("/jobs", b'{"type": "a", "args": [' + text.encode() + b"]}", status=400)
    api.get("/jobs/a%00b", status=400)
    api.get("/events?types=a%00", status=400)
    assert api.push(args=[r"\u0000", "\U0001f600"])["args"] == [r"\u0000", "\U0001f600"]


# Jobs


def test_a_job_comes_back_as_it_was_sent_with_what_is_known_of_it(api: Api) -> None:
    sent = {
        "args": [1, "two", {"three": [None, 4.5]}],
        "meta": {"trace_id": "t"},
        "options": {"queue": "mail", "priority": 7, "tags": ["a"], "expires_at": "2099-12-31T23:59:59Z", "x_own": 1},
        "x_unknown": {"kept": True},
    }
    job = api.push(**sent)
    assert api.get(f"/jobs/{job['id']}")["job"] == job
    assert {name: job[name] for name in ("args", "meta", "x_unknown")} == {
        name: sent[name] for name in ("args", "meta", "x_unknown")
    }
    assert (job["queue"], job["priority"], job["tags"], job["state"]) == ("mail", 7, ["a"], "available")
    assert (job["expires_at"], job["attempt"], job["max_attempts"]) == ("2099-12-31T23:59:59Z", 0, 3)
    assert not {"started_at", "completed_at", "error", "result"} & set(job)


def test_a_job_that_is_done_says_so(api: Api) -> None:
    job = api.push()
    (fetched,) = api.fetch(worker_id="one")
    assert (fetched["id"], fetched["state"], fetched["attempt"]) == (job["id"], "active", 1)
    done = api.post("/workers/ack", {"job_id": job["id"], "ticket": fetched["ticket"], "result": {"ok": True}})
    assert (done["acknowledged"], done["state"]) == (True, "completed")
    told = api.get(f"/jobs/{job['id']}")["job"]
    assert (told["result"], told["state"]) == ({"ok": True}, "completed")
    code, message = error_of(api.post("/workers/ack", {"job_id": job["id"]}, status=409))
    assert (code, "completed" in message) == ("conflict", True)


def test_a_late_report_is_fenced_by_its_ticket(api: Api) -> None:
    job = api.push(options={"visibility_timeout_ms": 1_000})
    (first,) = api.fetch(worker_id="one")
    engine.tick(now=CallQueue.objects.get().started_at + timedelta(seconds=2))
    (second,) = api.fetch(worker_id="two")
    api.post("/workers/ack", {"job_id": job["id"], "ticket": first["ticket"]}, status=409)
    api.post("/workers/nack", {"job_id": job["id"], "worker_id": "one", "error": {"message": "x"}}, status=409)
    assert api.post("/workers/heartbeat", {"worker_id": "one", "active_jobs": [job["id"]]})["jobs_extended"] == []
    told = api.get(f"/jobs/{job['id']}")["job"]
    assert (told["state"], told["error"]["type"], told["attempt"]) == ("active", "visibility_timeout", 2)
    api.post("/workers/ack", {"job_id": job["id"], "ticket": second["ticket"]})


def test_a_failure_is_kept_in_the_words_of_the_worker(api: Api) -> None:
    job = api.push(options={"retry": {"max_attempts": 2, "initial_interval": "PT2S", "jitter": False}})
    api.fetch()
    error = {"code": "handler_error", "message": "no", "type": "smtp.refused", "details": {"port": 25}}
    failed = api.post("/workers/nack", {"job_id": job["id"], "error": error})
    assert (failed["state"], failed["attempt"], failed["max_attempts"]) == ("retryable", 1, 2)
    assert 1_900 <= failed["retry_delay_ms"] <= 2_100
    (kept,) = api.get(f"/jobs/{job['id']}")["job"]["errors"]
    assert {name: kept[name] for name in error} == error
    assert (kept["attempt"], bool(kept["occurred_at"])) == (1, True)


@pytest.mark.parametrize("error", [{"retryable": False}, {"code": "DISCARD"}])
def test_a_worker_can_end_a_job_for_good(api: Api, error: dict[str, Any]) -> None:
    job = api.push(options={"retry": {"max_attempts": 9}})
    api.fetch()
    failed = api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no", **error}})
    assert (failed["state"], bool(failed["discarded_at"])) == ("discarded", True)


def test_a_provider_that_says_stop_holds_the_key_back_and_spends_nothing(api: Api) -> None:
    for _ in range(2):
        api.push(options={"rate_limit": {"key": "stripe", "concurrency": 5}})
    (job,) = api.fetch()
    error = {"type": "RateLimitExceeded", "message": "stop", "rate_limit_until": "+PT60S"}
    told = api.post("/workers/nack", {"job_id": job["id"], "error": error})
    assert (told["state"], told["attempt"]) == ("available", 0)
    assert api.fetch() == []
    assert api.get("/rate-limits/stripe")["blocked_until"]


def test_a_batch_is_sent_whole_or_not_at_all(api: Api) -> None:
    good, bad = {"type": "a", "args": []}, {"type": "a"}
    assert "jobs.1.args" in api.post("/jobs/batch", {"jobs": [good, bad]}, status=400)["error"]["message"]
    assert not CallQueue.objects.exists()
    twice = {**good, "id": str(uuid_utils.uuid7())}
    api.post("/jobs/batch", {"jobs": [good, twice, twice]}, status=409)
    assert not CallQueue.objects.exists()
    sent = api.post("/jobs/batch", {"jobs": [good] * 1_000}, status=201)
    assert (sent["count"], CallQueue.objects.count()) == (1_000, 1_000)


def test_an_id_is_taken_once(api: Api) -> None:
    wanted = str(uuid_utils.uuid7())
    assert api.push(id=wanted)["id"] == wanted
    answer = api.post("/jobs", {"type": "a", "args": [], "id": wanted}, status=409)
    assert (answer["error"]["code"], answer["error"]["details"]["existing_job_id"]) == ("duplicate", wanted)


def test_pending_jobs_wait_for_their_activation(api: Api) -> None:
    job = api.push(options={"pending": True})
    assert (job["state"], api.fetch()) == ("pending", [])
    assert api.post(f"/jobs/{job['id']}/activate")["job"]["state"] == "available"
    api.post(f"/jobs/{job['id']}/activate", status=409)
    assert len(api.fetch()) == 1


def test_a_job_can_be_cancelled_waiting_or_running_but_not_twice(api: Api) -> None:
    for is_fetched in (False, True):
        job = api.push()
        if is_fetched:
            api.fetch()
        told = api.ask("DELETE", f"/jobs/{job['id']}")["job"]
        assert (told["state"], told["previous_state"]) == ("cancelled", "active" if is_fetched else "available")
        assert ("completed_at" in told, bool(told["cancelled_at"])) == (False, True)
        api.ask("DELETE", f"/jobs/{job['id']}", status=409)
        api.post("/workers/ack", {"job_id": job["id"]}, status=409)


def test_progress_never_goes_back_and_keeps_the_lease(api: Api) -> None:
    job = api.push()
    api.fetch()
    path = f"/jobs/{job['id']}/progress"
    assert api.ask("PUT", path, {"progress": 0.5, "message": "half"})["progress"] == 0.5
    assert api.ask("PUT", path, {"progress": 0.2, "data": {"row": 2}})["progress"] == 0.5
    assert api.ask("PUT", path, {"progress": 7})["progress"] == 1.0
    told = api.get(path)
    assert (told["message"], told["data"], told["state"]) == ("half", {"row": 2}, "active")


# Unique jobs


def unique(**policy: Any) -> dict[str, Any]:
    return {"unique": {"keys": ["type", "args"], **policy}}


def test_of_unique_jobs_there_is_one(api: Api) -> None:
    first = api.push(args=[1], options=unique())
    answer = api.post("/jobs", {"type": "mail.send", "args": [1], "options": unique()}, status=409)
    assert answer["error"]["details"]["existing_job_id"] == first["id"]
    api.push(args=[2], options=unique())
    again = api.post("/jobs", {"type": "mail.send", "args": [1], "options": unique(on_conflict="ignore")})
    assert (again["job"]["id"], again["deduplicated"]) == (first["id"], True)
    second = api.push(args=[1], options=unique(on_conflict="replace"))
    assert api.get(f"/jobs/{first['id']}")["job"]["state"] == "cancelled"
    api.ask("DELETE", f"/jobs/{second['id']}")
    api.push(args=[1], options=unique())


def test_a_batch_can_t_hold_two_of_which_there_may_be_one(api: Api) -> None:
    job = {"type": "a", "args": [1], "options": unique()}
    assert api.post("/jobs/batch", {"jobs": [job, job]}, status=409)["error"]["code"] == "duplicate"
    assert not CallQueue.objects.exists()


def test_a_unique_key_holds_for_its_states_and_period_only(api: Api) -> None:
    api.push(args=[1], options=unique(period="PT1H"))
    CallQueue.objects.update(created_at=CallQueue.objects.get().created_at - timedelta(hours=2))
    api.push(args=[1], options=unique(period="PT1H"))
    (one, _) = api.fetch(count=2)
    api.post("/workers/ack", {"job_id": one["id"]})
    api.push(args=[3], options=unique(states=["completed"]))


def test_a_job_that_replaces_another_can_keep_its_time(api: Api) -> None:
    first = api.push(args=[1], options={**unique(), "scheduled_at": "2099-01-01T00:00:00Z"})
    second = api.push(args=[1], options=unique(on_conflict="replace_except_schedule"))
    assert (second["state"], second["scheduled_at"]) == ("scheduled", "2099-01-01T00:00:00.000Z")
    assert api.get(f"/jobs/{first['id']}")["job"]["state"] == "cancelled"


# Queues


def test_celery_s_queues_are_not_fetched_from_and_pulled_ones_not_sent_to_celery(api: Api) -> None:
    CallQueue.objects.send("noop", queue="celery")
    job = api.push(options={"queue": "celery"})
    assert CallQueue.objects.get(id=job["id"]).state == State.DISPATCHED
    answer = api.post("/workers/fetch", {"queues": ["mail", "celery"]}, status=422)
    assert "Celery" in answer["error"]["message"]
    assert api.get(f"/jobs/{job['id']}")["job"]["state"] == "active"
    assert {each["name"]: each["served_by"] for each in api.get("/queues")["queues"]} == {"celery": "celery"}


def test_a_queue_is_paused_for_fetchers_and_counted(api: Api) -> None:
    api.push()
    assert api.post("/queues/default/pause")["queue"]["paused"] is True
    api.push()
    assert api.fetch() == []
    told = api.get("/queues/default/stats")
    assert (told["queue"]["available"], told["stats"]["depth"], told["status"]) == (2, 2, "paused")
    assert api.post("/queues/default/resume")["queue"]["paused"] is False
    assert len(api.fetch(count=5)) == 2
    api.get("/queues/unheard/stats", status=404)


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


def test_a_full_queue_can_drop_its_oldest(api: Api) -> None:
    bound(api, 2, strategy="drop_oldest")
    first, second, third = (api.push() for _ in range(3))
    assert api.get(f"/jobs/{first['id']}")["job"]["reason"] == "crowded"
    assert [job["id"] for job in api.fetch(count=5)] == [second["id"], third["id"]]


def test_a_full_queue_can_have_senders_wait(api: Api) -> None:
    bound(api, 1, strategy="block")
    api.push()
    api.post("/jobs", {"type": "a", "args": []}, status=429)
    api.post("/jobs", {"type": "a", "args": []}, status=429, **{"OJS-Block-Timeout": "0.2"})
    api.post("/jobs", {"type": "a", "args": []}, status=400, **{"OJS-Block-Timeout": "soon"})


def test_who_serves_a_queue_does_not_change_under_running_jobs(api: Api) -> None:
    api.push()
    api.fetch()
    api.ask("PUT", "/admin/queues/default/config", {"is_pulled": False}, status=409)
    api.post("/workers/ack", {"job_id": api.get("/admin/jobs")["items"][0]["id"]})
    assert api.ask("PUT", "/admin/queues/default/config", {"is_pulled": False})["served_by"] == "celery"


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
    assert api.fetch(count=2) == []
    told = api.get(f"/rate-limits/{key}")
    assert {name: told["rate"][name] for name in rate} == rate
    assert (told["rate"]["current_count"], told["waiting_count"]) == (1, 1)


def test_a_key_is_overridden_for_a_time_and_back(api: Api) -> None:
    api.push(options={"rate_limit": {"key": "api", "concurrency": 5}})
    told = api.ask("PUT", "/rate-limits/api", {"concurrency": 0, "expires_at": "+PT60S"})
    assert (told["concurrency"]["limit"], bool(told["override_expires_at"])) == (0, True)
    assert api.fetch() == []
    assert api.ask("DELETE", "/rate-limits/api")["concurrency"] == {"limit": 5, "active": 0, "available": 5}
    assert len(api.fetch()) == 1
    listed = api.get("/rate-limits?per_page=1")
    assert (listed["items"][0]["key"], listed["pagination"]["total"]) == ("api", RateLimitKey.objects.count())
    api.ask("PUT", "/rate-limits/api", {"concurrency": 1, "expires_at": "2001-01-01T00:00:00Z"}, status=400)
    api.ask("PUT", "/rate-limits/api", {}, status=400)
    api.ask("PUT", "/rate-limits/unheard", {"concurrency": 1}, status=404)


def test_a_queue_s_own_limit_comes_on_top(api: Api) -> None:
    api.ask("PUT", "/admin/queues/default/rate-limit", {"concurrency": 1})
    for _ in range(2):
        api.push(options={"rate_limit": {"key": "api", "concurrency": 5}})
    assert len(api.fetch(count=5)) == 1


def test_several_keys_with_costs_are_spent_at_once(api: Api) -> None:
    RateLimitKey.objects.declare("tokens", concurrency=10)
    for _ in range(3):
        api.push(options={"keys": {"tokens": 4}})
    assert len(api.fetch(count=5)) == 2


# Workers


def test_a_worker_that_drains_gets_nothing_more(api: Api) -> None:
    api.push()
    api.post("/workers/heartbeat", {"worker_id": "one", "active_jobs": []})
    assert api.get("/workers/one/health")["state"] == "running"
    assert api.post("/workers/beat", {"worker_id": "one", "state": "drain", "active_jobs": 0})["acknowledged"] is True
    assert api.fetch(worker_id="one") == []
    api.get("/workers/one/health", status=503)
    assert len(api.fetch(worker_id="two")) == 1


def test_an_administrator_tells_a_worker_what_to_do(api: Api) -> None:
    api.push()
    api.fetch(worker_id="one")
    assert api.get("/admin/workers")["summary"]["total"] == 1
    assert len(api.get("/admin/workers/one")["jobs"]) == 1
    api.post("/admin/workers/one/quiet")
    assert api.post("/workers/heartbeat", {"worker_id": "one"})["state"] == "quiet"
    api.post("/admin/workers/unheard/quiet", status=404)
    api.post("/admin/workers/one/dance", status=404)


def test_a_job_that_is_given_back_waits_again(api: Api) -> None:
    job = api.push()
    api.fetch(worker_id="one")
    body = {"job_id": job["id"], "worker_id": "one", "requeue": True, "error": {"message": "ending"}}
    assert api.post("/workers/nack", body)["state"] == "available"
    assert api.fetch(worker_id="two")[0]["attempt"] == 1


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
        job = api.push(options={"retry": {"max_attempts": 1, "on_exhaustion": policy}})
        api.fetch()
        api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no", "type": "smtp"}})
    (letter,) = api.get("/dead-letter?queue=default&type=mail.send")["jobs"]
    assert api.get("/dead-letter/stats") | {"oldest_at": 0, "newest_at": 0} == {
        "total": 1,
        "by_queue": {"default": 1},
        "by_error_type": {"smtp": 1},
        "oldest_at": 0,
        "newest_at": 0,
    }
    again = api.post(f"/dead-letter/{letter['id']}/retry")["job"]
    assert (again["state"], again["attempt"], len(again["errors"])) == ("available", 0, 1)
    api.post(f"/dead-letter/{letter['id']}/retry", status=404)


def test_many_jobs_are_changed_at_once_only_if_that_is_said_twice(api: Api) -> None:
    for _ in range(3):
        api.push()
    api.post("/admin/jobs/bulk/cancel", {"filter": {"queue": "default"}}, status=400)
    told = api.post("/admin/jobs/bulk/cancel", {"filter": {"queue": "default"}, "confirm": True})
    assert (told["matched"], told["succeeded"]) == (3, 3)
    assert api.post("/admin/jobs/bulk/retry", {"filter": {"state": "cancelled"}, "confirm": True})["succeeded"] == 3
    api.ask("DELETE", "/admin/queues/default/jobs", {"states": ["available"]}, status=400)
    purged = api.ask("DELETE", "/admin/queues/default/jobs", {"states": ["available"], "confirm": True})
    assert (purged["purged_count"], CallQueue.objects.filter(state="cancelled").count()) == (3, 3)
    assert api.post("/admin/jobs/bulk/delete", {"filter": {}, "confirm": True})["succeeded"] == 3
    api.post("/admin/jobs/bulk/dance", {"confirm": True}, status=404)


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


# Who may


def test_without_credentials_nothing_is_allowed_by_default(api: Api, settings: Settings) -> None:
    settings.DISPATCHER = {}
    for method, path, body in (
        ("POST", "/jobs", {"type": "a", "args": []}),
        ("POST", "/workers/fetch", {"queues": ["default"]}),
        ("POST", "/workers/heartbeat", {"worker_id": "one"}),
        ("GET", "/queues", None),
        ("GET", "/admin/stats", None),
        ("PUT", "/admin/queues/default/config", {}),
        ("POST", "/cron", {"name": "x", "cron": "@daily", "type": "a"}),
    ):
        answer = api.ask(method, path, body, status=401)
        assert (answer["error"]["code"], api.last.headers["WWW-Authenticate"]) == ("unauthenticated", "Bearer")
    api.get("/health")
    assert api.client.get("/ojs/manifest").status_code == 200
    assert not CallQueue.objects.exists()


@pytest.fixture
def holder(settings: Settings) -> Callable[..., Api]:
    settings.DISPATCHER = {}
    return lambda *scopes, name="me": Api(Authorization=f"Bearer {make_token(name, scopes)}")


def test_a_token_allows_what_its_scopes_say(holder: Callable[..., Api]) -> None:
    api = holder("send:mail*", "fetch:mail")
    job = api.push(options={"queue": "mail"})
    api.push(options={"queue": "mail-bulk"})
    api.post("/jobs", {"type": "a", "args": []}, status=403)
    api.post("/jobs/batch", {"jobs": [{"type": "a", "args": [], "options": {"queue": "x"}}]}, status=403)
    api.post("/workers/fetch", {"queues": ["mail", "mail-bulk"]}, status=403)
    assert [each["id"] for each in api.fetch("mail")] == [job["id"]]
    api.get(f"/jobs/{job['id']}", status=403)
    api.post("/queues/mail/pause", status=403)
    api.post("/workers/ack", {"job_id": job["id"]})


def test_a_token_that_is_unknown_revoked_or_expired_is_refused(holder: Callable[..., Api]) -> None:
    api = holder("admin")
    api.get("/queues")
    call_command("dispatcher_token", "me", "--revoke")
    api.get("/queues", status=401)
    Api(Authorization="Bearer nonsense").get("/queues", status=401)
    late = Api(Authorization=f"Bearer {make_token('late', ['read'])}")
    ApiToken.objects.filter(name="late").update(expires_at=ApiToken.objects.get(name="late").created_at)
    late.get("/queues", status=401)


def test_the_token_itself_is_not_kept() -> None:
    token = make_token("me", ["read"])
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(token)::text FROM dispatcher_apitoken AS token")
        assert token not in cursor.fetchone()[0]


def test_a_token_is_limited_by_its_own_key(holder: Callable[..., Api]) -> None:
    RateLimitKey.objects.declare("token:me", rate=(2, 60))
    api = holder("read")
    api.get("/queues")
    assert (api.last.headers["X-RateLimit-Limit"], api.last.headers["X-RateLimit-Remaining"]) == ("2", "1")
    api.get("/queues")
    answer = api.get("/queues", status=429)
    assert (answer["error"]["code"], answer["error"]["retryable"]) == ("rate_limited", True)
    assert 1 <= int(api.last.headers["Retry-After"]) <= 61
    assert api.last.headers["X-RateLimit-Remaining"] == "0"


def test_people_do_over_http_what_they_may_in_the_admin_if_their_page_sends_the_token(settings: Settings) -> None:
    settings.DISPATCHER = {}
    user = User.objects.create_user("clerk")
    user.user_permissions.set(Permission.objects.filter(codename="view_callqueue"))
    api = Api()
    api.client = Client(enforce_csrf_checks=True)
    api.client.force_login(user)
    api.get("/queues")
    api.get("/admin/workers")
    assert "CSRF" in api.post("/queues/a/pause", status=403)["error"]["message"]


def test_pages_of_other_origins_are_let_in_only_if_they_are_named(api: Api, settings: Settings) -> None:
    api.get("/health", Origin="https://app.example.org")
    assert "Access-Control-Allow-Origin" not in api.last.headers
    settings.DISPATCHER = {"http_origins": ["https://app.example.org"]}
    api.ask("OPTIONS", "/jobs", status=204, Origin="https://app.example.org")
    assert api.last.headers["Access-Control-Allow-Origin"] == "https://app.example.org"
    api.ask("OPTIONS", "/jobs", status=204, Origin="https://evil.example.org")
    assert "Access-Control-Allow-Origin" not in api.last.headers


def test_the_token_command_says_what_is_wrong() -> None:
    for arguments, words in (
        ([], "NAME"),
        (["me"], "scope"),
        (["me", "dance"], "dance"),
        (["unheard", "--revoke"], "no token"),
    ):
        with pytest.raises(CommandError, match=words):
            call_command("dispatcher_token", *arguments)
    call_command("dispatcher_token", "me", "read")
    with pytest.raises(CommandError, match="already"):
        call_command("dispatcher_token", "me", "read")


def test_the_manifest_claims_what_is_there(api: Api) -> None:
    told = json.loads(api.client.get("/ojs/manifest").content)
    assert (told["specversion"], told["conformance_level"], told["backend"]) == ("1.0", 2, "postgres")
    assert told["capabilities"]["schema_validation"] is False


def test_queues_of_python_are_not_known_before_they_are_named(api: Api) -> None:
    CallQueue.objects.send("noop", queue="celery")
    assert not Queue.objects.exists()
    api.get("/queues/celery/stats")
