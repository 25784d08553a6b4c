"""The Open Job Spec over HTTP: what every answer has, jobs, unique jobs."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import uuid_utils
from django.utils import timezone
from pytest_django import Settings

from dispatcher import engine
from dispatcher.models import CallQueue, Slot
from dispatcher.states import State
from tests.ojs.builders import date_back
from tests.ojs.http_client import MEDIA, Api, error_of, field_of
from tests.races.lockstep import holding

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("open_http"), pytest.mark.django]


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


def test_a_zone_that_the_database_does_not_know_is_turned_into_utc(api: Api) -> None:
    api.push(options={"scheduled_at": "2099-01-02T00:00:00+16:56"})
    assert CallQueue.objects.get().scheduled_at == datetime(2099, 1, 1, 7, 4, tzinfo=UTC)


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
        ({"options": {"scheduled_at": "0001-01-01T00:00:00+01:00"}}, "options.scheduled_at"),
        ({"options": {"scheduled_at": "+P9999999D"}}, "options.scheduled_at"),
        ({"options": {"expires_at": "9999-12-31T23:59:59-01:00"}}, "options.expires_at"),
        ({"options": {"timeout_ms": -1}}, "options.timeout_ms"),
        ({"options": {"rate_limit": {"key": "a b"}}}, "options.rate_limit.key"),
        ({"options": {"rate_limit": {"key": "a", "rate": {"limit": 1}}}}, "options.rate_limit.rate"),
        ({"options": {"rate_limit": {"key": "a", "what": 1}}}, "options.rate_limit.what"),
        ({"options": {"rate_limit": {"concurrency": 1}}}, "rate_limit.key"),
        ({"options": {"keys": ["not-declared"]}}, "keys"),
        ({"options": {"unique": {"keys": ["meta"]}}}, "options.unique.meta_keys"),
        ({"options": {"unique": {"args_keys": ["to"]}}}, "options.unique.args_keys"),
        ({"options": {"unique": {"on_conflict": "x"}}}, "options.unique.on_conflict"),
        ({"options": {"unique": {"fields": ["to"]}}}, "options.unique.fields"),
        ({"options": {"unique": {"key": ["to"]}}}, "options.unique.key"),
        ({"options": {"unique": {"key": ["to", "type"]}}}, "options.unique.key"),
        ({"options": {"unique": {"key": ["args"], "keys": ["type"]}}}, "options.unique.keys"),
        ({"args": [{"a": 1, "b": 1}], "unique": {"key": ["a"], "args_keys": ["b"]}}, "unique.args_keys"),
        ({"options": {"retry": {"attempts": 3}}}, "options.retry.attempts"),
        ({"retry": {"attempts": 3}}, "retry.attempts"),
    ],
)
def test_a_bad_job_is_refused_by_the_name_of_its_field(api: Api, job: dict[str, Any], field: str) -> None:
    answer = api.post("/jobs", {"type": "mail.send", "args": [], **job}, status=400)
    assert field in answer["error"]["message"]
    assert not CallQueue.objects.exists()


def test_what_is_too_large_is_refused(api: Api, settings: Settings) -> None:
    settings.DISPATCHER = {"http_anonymous": ["admin"], "max_payload_bytes": 1_000}
    for job, word in (({"args": ["x" * 2_000]}, "max_payload_bytes"), ({"meta": {"x": "x" * 70_000}}, "meta")):
        assert word in error_of(api.post("/jobs", {"type": "a", "args": [], **job}, status=413))[1]
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    assert error_of(api.post("/jobs", {"type": "a", "args": ["x" * 200]}, status=413))[0] == "envelope_too_large"
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100_000
    api.post("/jobs", {"type": "a", "args": json.loads("[" * 101 + "]" * 101)}, status=400)


def test_what_can_t_be_stored_is_refused_and_what_looks_like_it_is_not(api: Api) -> None:
    for text in (r'"\u0000"', r'"\\\u0000"', r'"\ud800"'):
        api.post("/jobs", b'{"type": "a", "args": [' + text.encode() + b"]}", status=400)
    api.get("/jobs/a%00b", status=400)
    api.get("/events?types=a%00", status=400)
    assert api.push(args=[r"\u0000", "\U0001f600"])["args"] == [r"\u0000", "\U0001f600"]


@pytest.mark.parametrize("number", ["1e999", "-1e999"])
def test_a_number_that_can_t_be_stored_is_refused(api: Api, number: str) -> None:
    job = api.taken()["id"]
    before = CallQueue.objects.values().get()
    for method, path, body in (
        ("POST", "/jobs", {"type": "a", "args": ["?"]}),
        ("POST", "/workflows", {"type": "group", "jobs": [{"type": "a", "args": ["?"]}]}),
        ("POST", "/workers/nack", {"job_id": job, "error": {"message": "no", "details": {"x": "?"}}}),
        ("PUT", f"/jobs/{job}/progress", {"progress": 0.5, "data": {"x": "?"}}),
    ):
        answer = api.ask(method, path, json.dumps(body).replace('"?"', number).encode(), status=400)
        assert (error_of(answer)[0], number in error_of(answer)[1]) == ("invalid_request", True)
        assert CallQueue.objects.values().get() == before
    assert api.push(args=[1e308])["args"] == [1e308]


# Jobs


def test_a_job_comes_back_as_it_was_sent_with_what_is_known_of_it(api: Api) -> None:
    sent = {
        "args": [1, "two", {"three": [None, 4.5]}],
        "meta": {"trace_id": "t"},
        "options": {"queue": "mail", "priority": 7, "tags": ["a"], "expires_at": "2099-12-31T23:59:59Z", "x_own": 1},
        "x_unknown": {"kept": True},
    }
    job = api.push(**sent)
    found = api.get(f"/jobs/{job['id']}")["job"]
    assert "fetches it over HTTP" in found.pop("why_waiting")
    assert found == job
    assert {name: job[name] for name in ("args", "meta", "x_unknown")} == {
        name: sent[name] for name in ("args", "meta", "x_unknown")
    }
    assert (job["queue"], job["priority"], job["tags"], job["state"]) == ("mail", 7, ["a"], "available")
    assert (job["expires_at"], job["attempt"], job["max_attempts"]) == ("2099-12-31T23:59:59Z", 0, 3)
    assert not {"started_at", "completed_at", "error", "result"} & set(job)


def test_a_late_report_is_fenced_by_its_ticket(api: Api) -> None:
    job = api.push(options={"visibility_timeout_ms": 1_000})
    (first,) = api.fetch(worker_id="one")
    api.post("/workers/heartbeat", {"worker_id": "one", "active_jobs": [job["id"]]})
    engine.tick(now=CallQueue.objects.get().started_at + timedelta(seconds=2))
    for proof in ({"ticket": first["ticket"]}, {"attempt": 1}):
        api.post("/workers/nack", {"job_id": job["id"], **proof, "error": {"message": "x"}}, status=409)
    (second,) = api.fetch(worker_id="two")
    api.post("/workers/ack", {"job_id": job["id"], "ticket": first["ticket"]}, status=409)
    api.post("/workers/ack", {"job_id": str(uuid4())}, status=404)
    api.post("/workers/nack", {"job_id": job["id"], "attempt": 1, "error": {"message": "x"}}, status=409)
    api.post("/workers/nack", {"job_id": job["id"], "worker_id": "one", "error": {"message": "x"}}, status=409)
    assert api.post("/workers/heartbeat", {"worker_id": "one", "active_jobs": [job["id"]]})["jobs_extended"] == []
    reply = api.get(f"/jobs/{job['id']}")["job"]
    assert (reply["state"], reply["error"]["type"], reply["attempt"]) == ("active", "visibility_timeout", 2)
    for _ in range(2):
        done = api.post("/workers/ack", {"job_id": job["id"], "ticket": second["ticket"]})
        assert done["state"] == "completed"


def test_a_failure_is_kept_in_the_words_of_the_worker(api: Api) -> None:
    job = api.taken(options={"retry": {"max_attempts": 2, "initial_interval": "PT2S", "jitter": False}})
    error = {"code": "handler_error", "message": "no", "type": "smtp.refused", "details": {"port": 25}}
    failed = api.nack(job, **error)
    assert (failed["state"], failed["attempt"], failed["max_attempts"]) == ("retryable", 1, 2)
    assert 1_900 <= failed["retry_delay_ms"] <= 2_100
    (kept,) = api.get(f"/jobs/{job['id']}")["job"]["errors"]
    assert {name: kept[name] for name in error} == error
    assert kept["attempt"] == 1
    assert kept["occurred_at"] == kept["timestamp"] == f"{kept['occurred_at'][:23]}Z"


@pytest.mark.parametrize("error", [{"retryable": False}, {"code": "DISCARD"}])
def test_a_worker_can_end_a_job_for_good(api: Api, error: dict[str, Any]) -> None:
    job = api.taken(options={"retry": {"max_attempts": 9}})
    failed = api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no", **error}})
    assert (failed["state"], bool(failed["discarded_at"])) == ("discarded", True)


def test_a_report_about_a_call_that_a_transaction_keeps_locked_is_to_be_repeated(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.sql.PATIENCE", timedelta(0))
    api.push()
    (job,) = api.fetch()
    report = {"job_id": job["id"], "ticket": job["ticket"]}
    with holding("SELECT FROM dispatcher_callqueue WHERE id = %s FOR UPDATE", [job["id"]]):
        assert api.post("/workers/ack", report, status=503)["error"]["retryable"]
        assert api.last.headers["Retry-After"]
    api.post("/workers/ack", report)
    assert CallQueue.objects.get().state == State.COMPLETED


def test_a_provider_that_says_stop_holds_the_key_back_and_spends_nothing(api: Api) -> None:
    for _ in range(2):
        api.push(options={"rate_limit": {"key": "stripe", "concurrency": 5}})
    (job,) = api.fetch()
    reply = api.nack(job, type="RateLimitExceeded", message="stop", rate_limit_until="+PT60S")
    assert (reply["state"], reply["attempt"]) == ("available", 0)
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


def test_pending_jobs_wait_for_their_activation(api: Api) -> None:
    job = api.push(options={"pending": True})
    assert (job["state"], api.fetch()) == ("pending", [])
    assert api.post(f"/jobs/{job['id']}/activate")["job"]["state"] == "available"
    for state in ("available", "active", "completed"):
        # Who repeats the request means the same job.
        assert api.post(f"/jobs/{job['id']}/activate")["job"]["state"] == state
        assert bool(api.fetch()) == (state == "available")
        if state == "active":
            api.ack(job)
    api.post(f"/jobs/{api.push()['id']}/activate", status=409)
    assert len(api.fetch()) == 1


def test_a_job_can_be_cancelled_waiting_or_running_but_not_twice(api: Api) -> None:
    for is_fetched in (False, True):
        job = api.push()
        if is_fetched:
            api.fetch()
        reply = api.ask("DELETE", f"/jobs/{job['id']}")["job"]
        assert (reply["state"], reply["previous_state"]) == ("cancelled", "active" if is_fetched else "available")
        assert ("completed_at" in reply, bool(reply["cancelled_at"])) == (False, True)
        api.ask("DELETE", f"/jobs/{job['id']}", status=409)
        code, message = error_of(api.post("/workers/ack", {"job_id": job["id"]}, status=409))
        assert (code, "cancelled" in message) == ("conflict", True)


def test_progress_never_goes_back(api: Api) -> None:
    job = api.taken()
    path = f"/jobs/{job['id']}/progress"
    assert api.ask("PUT", path, {"progress": 0.5, "message": "half"})["progress"] == 0.5
    assert api.ask("PUT", path, {"progress": 0.2, "data": {"row": 2}})["progress"] == 0.5
    assert api.ask("PUT", path, {"progress": 7})["progress"] == 1.0
    reply = api.get(path)
    assert (reply["message"], reply["data"], reply["state"]) == ("half", {"row": 2}, "active")


def test_a_progress_is_a_number_or_content_or_both_and_each_attempt_has_its_own(api: Api) -> None:
    job = api.taken(retry={"initial_interval": "PT0S"})
    path, rows = f"/jobs/{job['id']}/progress", {"data": {"rows": 2}}
    # Sections 5.2 and 5.3 of ojs-progress.
    assert field_of(api.ask("PUT", path, {"message": "half"}, status=400)) == "progress"
    answer = api.ask("PUT", path, rows)
    assert (answer["progress"], answer["data"]) == (None, rows["data"])
    assert api.ask("PUT", path, {"progress": 0.5, "message": "half"})["data"] == rows["data"]
    assert api.ask("PUT", path, rows)["progress"] == 0.5
    api.nack(job)
    (again,) = api.fetch()
    answer = api.ask("PUT", path, {"progress": 0.1})
    assert (answer["progress"], answer["message"], answer["data"]) == (0.1, None, None)
    assert api.ask("PUT", path, rows)["progress"] == 0.1
    api.ack(again)
    assert api.get(path)["progress"] == 1.0


def lapsing() -> datetime:
    """Let the lease of the one job that runs end in ten seconds, and return when it ends."""
    ends_at = timezone.now() + timedelta(seconds=10)
    Slot.objects.update(lease_until=ends_at, pulled_until=ends_at)
    return ends_at


def test_progress_may_be_in_percent_as_the_sdks_send_it(api: Api) -> None:
    job = api.taken()
    sent = {"job_id": job["id"], "message": "half", "data": {"row": 2}}
    answer = api.post("/workers/progress", {**sent, "percentage": 50})
    assert answer == api.get(f"/jobs/{job['id']}/progress")
    assert (answer["progress"], answer["message"], answer["data"]) == (0.5, "half", {"row": 2})
    assert answer["updated_at"].endswith("Z")
    assert api.post("/workers/progress", {**sent, "percentage": 100})["progress"] == 1.0
    assert field_of(api.post("/workers/progress", {**sent, "progress": 0.5}, status=400)) == "percentage"
    api.post("/workers/progress", {"job_id": str(uuid4()), "percentage": 1}, status=404)


def test_a_worker_may_send_more_than_the_server_reads(api: Api) -> None:
    """The bodies of workers follow "must ignore" (ojs-json-format, section 9.2; ojs-http-binding, section 3.3)."""
    api.push()
    more: Any = {"sent_by_a_later_sdk": {"a": 1}}
    beat = {"active_jobs": 0, "active_job_ids": [], "hostname": "a", "pid": 7, "queues": ["default"], "concurrency": 10}
    # As the JavaScript SDK sends it.
    assert api.post("/workers/heartbeat", {"worker_id": "one", "state": "running", "labels": [], **beat, **more})
    (job,) = api.fetch(worker_id="one", **more)
    api.post("/workers/nack", {"job_id": job["id"], "error": {"message": "no", **more}, "requeue": True, **more})
    api.ack(api.fetch()[0], **more)
    assert api.get(f"/jobs/{job['id']}")["job"]["state"] == "completed"


def test_a_checkpoint_of_a_progress_is_refused_since_it_would_be_lost(api: Api) -> None:
    job, more = api.taken(), {"checkpoint": {"row": 2}}
    for method, path, sent in (
        ("PUT", f"/jobs/{job['id']}/progress", {"progress": 0.5}),
        ("POST", "/workers/progress", {"job_id": job["id"], "percentage": 50}),
    ):
        assert field_of(api.ask(method, path, {**sent, **more}, status=400)) == "checkpoint"


def test_the_progress_of_a_job_s_holder_renews_its_lease(api: Api) -> None:
    job = api.push()
    (fetched,) = api.fetch(worker_id="one")
    for proof in (
        {"ticket": fetched["ticket"]},
        {"worker_id": "one"},
        {"ticket": fetched["ticket"], "worker_id": "one"},
    ):
        ends_at = lapsing()
        assert api.ask("PUT", f"/jobs/{job['id']}/progress", {"progress": 0.5, **proof})["progress"] == 0.5
        assert Slot.objects.get().pulled_until > ends_at


def test_progress_without_a_proof_or_with_the_attempt_alone_is_kept_but_renews_nothing(api: Api) -> None:
    job = api.push()
    api.fetch(worker_id="one")
    ends_at = lapsing()
    for proof in ({}, {"attempt": 1}):
        assert api.ask("PUT", f"/jobs/{job['id']}/progress", {"progress": 0.5, **proof})["progress"] == 0.5
    assert Slot.objects.get().pulled_until == ends_at


def test_the_progress_of_who_has_lost_the_job_changes_nothing(api: Api) -> None:
    job = api.push(options={"visibility_timeout_ms": 1_000})
    path = f"/jobs/{job['id']}/progress"
    (first,) = api.fetch(worker_id="one")
    engine.tick(now=CallQueue.objects.get().started_at + timedelta(seconds=2))
    # What waits again is spoken of in vain, and that is no fault (ojs-progress, section 6.1).
    assert api.ask("PUT", path, {"progress": 0.9, "ticket": first["ticket"]})["progress"] is None
    (second,) = api.fetch(worker_id="two")
    ends_at = lapsing()
    for proof in ({"ticket": first["ticket"]}, {"worker_id": "one"}, {"ticket": second["ticket"], "worker_id": "one"}):
        answer = api.ask("PUT", path, {"progress": 0.9, **proof}, status=409)
        assert (answer["error"]["code"], "another worker's" in answer["error"]["message"]) == ("conflict", True)
    assert (api.get(path)["progress"], Slot.objects.get().pulled_until) == (None, ends_at)
    api.ask("PUT", path, {"progress": 0.1, "ticket": "nonsense"}, status=404)


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


@pytest.mark.parametrize("key", [["user"], ["args"], ["type", "args"], ["type", "queue", "args"]])
def test_a_unique_key_names_fields_of_the_arguments_or_of_the_job(api: Api, key: list[str]) -> None:
    for user in (42, 43):
        options = {"unique": {"key": key, "period_ms": 60_000, "on_conflict": "replace"}}
        api.push(args=[{"user": user}], options=options)
    assert list(CallQueue.objects.values_list("state", flat=True)) == ["available"] * 2
    api.post("/jobs", {"type": "mail.send", "args": [{"user": 43}], "unique": {"key": key}}, status=409)


def test_a_unique_policy_may_say_that_it_names_no_fields_of_the_metadata(api: Api) -> None:
    """As the example of the spec does (ojs-unique-jobs, section 2)."""
    policy = {"keys": ["type", "queue", "args"], "args_keys": ["user_id"], "meta_keys": [], "period": "PT1H"}
    states = ["available", "active", "scheduled", "retryable", "pending"]
    job = {"args": [{"user_id": 42}], "options": {"unique": {**policy, "states": states, "on_conflict": "reject"}}}
    api.push(**job)
    api.post("/jobs", {"type": "mail.send", **job}, status=409)


def test_a_unique_key_holds_for_its_states_and_period_only(api: Api) -> None:
    api.push(args=[1], options=unique(period="PT1H"))
    date_back(timedelta(hours=2))
    api.push(args=[1], options=unique(period="PT1H"))
    (one, _) = api.fetch(count=2)
    api.ack(one)
    api.push(args=[3], options=unique(states=["completed"]))


def test_a_unique_key_is_free_when_its_job_has_ended_and_taken_again_when_that_is_retried(api: Api) -> None:
    first = api.push(args=[1], options=unique())
    api.ask("DELETE", f"/jobs/{first['id']}")
    api.post(f"/admin/jobs/{first['id']}/retry")
    answer = api.post("/jobs", {"type": "mail.send", "args": [1], "options": unique()}, status=409)
    assert answer["error"]["details"]["existing_job_id"] == first["id"]
    api.ask("DELETE", f"/jobs/{first['id']}")
    api.push(args=[1], options=unique())


def test_a_job_that_replaces_another_can_keep_its_time(api: Api) -> None:
    first = api.push(args=[1], options={**unique(), "scheduled_at": "2099-01-01T00:00:00Z"})
    second = api.push(args=[1], options=unique(on_conflict="replace_except_schedule"))
    assert (second["state"], second["scheduled_at"]) == ("scheduled", "2099-01-01T00:00:00.000Z")
    assert api.get(f"/jobs/{first['id']}")["job"]["state"] == "cancelled"


def test_a_job_that_replaces_none_does_not_take_the_time_of_one_that_was_cancelled(api: Api) -> None:
    first = api.push(args=[1], options={**unique(), "scheduled_at": "2099-01-01T00:00:00Z"})
    api.ask("DELETE", f"/jobs/{first['id']}")
    second = api.push(args=[1], options=unique(on_conflict="replace_except_schedule"))
    assert second["state"] == "available"
