"""Crons over HTTP: what they may be called, what their jobs may have, and when they fire."""

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

import dispatcher.api
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.ojs.cron import _next_run, fire_cron, fire_due
from dispatcher.ojs.models import Cron, EventLogEntry
from tests.ojs.builders import date_back
from tests.ojs.http_client import MOMENT, Api, field_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


@pytest.mark.parametrize("overlap", ["skip", "enqueue"])
@pytest.mark.parametrize("length", [59, 60, 190])
def test_a_cron_with_a_long_name_fires_as_any_other(api: Api, length: int, overlap: str) -> None:
    name = "n" * length
    wanted = {"name": name, "cron": "* * * * *", "overlap_policy": overlap, "type": "a"}
    api.post("/cron", wanted, status=201)
    # Its next run is on the minute, whenever it is asked for.
    for _ in range(20):
        assert api.get(f"/cron/{name}")["cron"]["next_run_at"].endswith(":00.000Z")
    assert fire_cron(name)
    assert fire_cron(name) is None, "this minute's was sent"
    date_back(timedelta(minutes=5))
    assert (fire_cron(name) is None) == (overlap == "skip")


@pytest.mark.parametrize(
    ("expression", "zone", "after", "runs"),
    [
        # The clock goes from 2 to 3, and from 3 to 2.
        ("30 2 * * *", "Europe/Berlin", "2030-03-31T00:00", ["2030-03-31T01:30", "2030-04-01T00:30"]),
        ("30 2 * * *", "Europe/Berlin", "2030-10-26T23:00", ["2030-10-27T00:30", "2030-10-28T01:30"]),
        ("30 * * * *", "Europe/Berlin", "2030-10-27T00:00", ["2030-10-27T00:30", "2030-10-27T01:30"]),
        ("0 0 29 2 *", "UTC", "2097-01-01T00:00", ["2104-02-29T00:00"]),
        ("59 23 31 12 */7", "UTC", "2030-01-01T00:00", ["2034-12-31T23:59"]),
        ("0 0 29 2 1", "UTC", "2088-03-01T00:00", ["2112-02-29T00:00"]),
    ],
)
def test_a_cron_runs_at_the_times_of_its_zone(expression: str, zone: str, after: str, runs: list[str]) -> None:
    at = datetime.fromisoformat(f"{after}+00:00")
    for run in runs:
        at = _next_run(Cron(name="a", expression=expression, timezone=zone), at)
        assert at == datetime.fromisoformat(f"{run}+00:00")


def test_a_cron_whose_call_cannot_be_sent_waits_for_its_next_time(api: Api) -> None:
    dispatcher.api.declare("gone", {})
    api.post("/cron", {"name": "n", "cron": "@daily", "type": "a", "options": {"keys": ["gone"]}}, status=201)
    RateLimitKey.objects.filter(name="gone").delete()
    Cron.objects.update(next_run_at=Now())
    assert fire_due() == 0
    assert not Cron.objects.filter(next_run_at__lte=Now()).exists()
    assert not CallQueue.objects.exists()


def test_a_cron_of_another_name_that_begins_alike_does_not_stand_in_the_way(api: Api) -> None:
    names = [f"{'n' * 100}-{end}" for end in "ab"]
    for name in names:
        api.post("/cron", {"name": name, "cron": "@daily", "type": "a"}, status=201)
    assert all(fire_cron(name) for name in names)


@pytest.mark.parametrize(
    "option",
    [
        {"scheduled_at": "+PT5S"},
        {"delay_until": "2030-01-01T00:00:00Z"},
        {"expires_at": "2030-01-01T00:00:00Z"},
        {"pending": True},
        {"unique": {"keys": ["type"]}},
    ],
)
@pytest.mark.parametrize("path", ["", "options.", "job_template.", "job_template.options."])
def test_an_option_that_a_cron_s_job_can_t_have_is_refused_by_its_name(
    api: Api, option: dict[str, Any], path: str
) -> None:
    job: dict[str, Any] = {"type": "a", "args": []}
    if "options" in path:
        job["options"] = option
    else:
        job |= option
    wanted = {"name": "x", "cron": "@daily", **({"job_template": job} if "template" in path else job)}
    assert field_of(api.post("/cron", wanted, status=400)) == path + next(iter(option))
    assert not Cron.objects.exists()


def test_the_options_of_a_cron_s_job_may_stand_beside_its_type(api: Api) -> None:
    template = {"type": "a", "queue": "far", "priority": 3, "options": {"priority": 5}, "pending": False}
    api.post("/cron", {"name": "x", "cron": "@daily", "job_template": template}, status=201)
    assert fire_cron("x")
    assert CallQueue.objects.values_list("queue", "priority").get() == ("far", 5)


@pytest.mark.parametrize("overlap", ["skip", "enqueue", "allow", "cancel_previous"])
def test_a_cron_sends_nothing_to_a_queue_that_is_paused(api: Api, overlap: str) -> None:
    wanted = {"name": "daily", "cron": "@daily", "overlap_policy": overlap, "type": "a", "options": {"queue": "mail"}}
    api.post("/cron", wanted, status=201)
    api.post("/queues/mail/pause")
    assert fire_cron("daily") is None
    assert not CallQueue.objects.exists()
    assert EventLogEntry.objects.get(kind="cron.skipped").data["reason"] == "queue_paused"
    api.post("/queues/mail/resume")
    assert fire_cron("daily")


def test_a_cron_has_events_when_it_fires_and_when_it_does_not(api: Api) -> None:
    template = {"type": "report.make", "args": [], "options": {"queue": "reports"}}
    api.post("/cron", {"name": "daily", "expression": "0 9 * * *", "job_template": template}, status=201)
    sent = fire_cron("daily")
    date_back(timedelta(minutes=5))
    assert fire_cron("daily") is None
    triggered, skipped = api.get("/events?types=cron.*")["events"]
    assert (triggered["type"], triggered["subject"], triggered["data"]["job_id"]) == ("cron.triggered", "daily", sent)
    about = {"cron_name": "daily", "cron_expr": "0 9 * * *", "job_type": "report.make", "queue": "reports"}
    assert about.items() <= triggered["data"].items()
    assert re.fullmatch(MOMENT, triggered["data"]["scheduled_at"])
    assert (skipped["type"], skipped["subject"]) == ("cron.skipped", "daily")
    assert skipped["data"] == {**about, "reason": "overlap_prevention", "existing_job_id": sent}


def test_a_cron_sends_one_job_a_minute_and_none_beside_one_that_runs(api: Api) -> None:
    template = {"type": "report.make", "args": [1], "options": {"queue": "reports", "priority": 3}}
    wanted = {"name": "daily", "expression": "0 9 * * 7", "timezone": "Europe/Berlin", "job_template": template}
    made = api.post("/cron", wanted, status=201)["cron"]
    assert (made["enabled"], made["overlap_policy"], bool(made["next_run_at"])) == (True, "skip", True)
    api.post("/cron", wanted, status=200)
    assert [cron["name"] for cron in api.get("/cron")["crons"]] == ["daily"]
    sent = fire_cron("daily")
    assert sent is not None
    assert fire_cron("daily") is None
    call = CallQueue.objects.get(id=sent)
    assert (call.task, call.args, call.queue, call.priority) == ("report.make", [1], "reports", 3)
    assert call.meta["cron_name"] == "daily"
    date_back(timedelta(minutes=5))
    assert fire_cron("daily") is None, "the one before has not ended"
    dispatcher.api.cancel([call.id])
    assert fire_cron("daily") is not None
    assert api.ask("PATCH", "/cron/daily", {"enabled": False})["cron"]["next_run_at"] is None
    assert api.ask("DELETE", "/cron/daily")["deleted"] is True
    assert not Cron.objects.exists()


@pytest.mark.parametrize(
    ("overlap", "running", "waiting"), [("allow", 2, 0), ("enqueue", 1, 1), ("cancel_previous", 1, 0)]
)
def test_what_becomes_of_a_run_beside_another_is_the_cron_s_choice(
    api: Api, overlap: str, running: int, waiting: int
) -> None:
    template = {"type": "report.make", "options": {"queue": "reports"}}
    api.post(
        "/cron", {"name": "often", "cron": "* * * * *", "overlap_policy": overlap, "job_template": template}, status=201
    )
    for _ in range(2):
        assert fire_cron("often")
        api.fetch("reports")
        date_back(timedelta(minutes=5))
    states = list(CallQueue.objects.values_list("state", flat=True))
    assert (states.count("active"), states.count("available")) == (running, waiting)


@pytest.mark.parametrize(
    ("wanted", "word"),
    [
        *(
            ({"cron": expression}, "")
            for expression in ("", "x", "99 25 32 13 8", "* * * *", "0 0 0 0 0 0 0", "@never")
        ),
        ({"cron": "@daily", "timezone": "EST"}, "timezone"),
    ],
)
def test_what_is_no_cron_expression_or_zone_of_the_iana_is_refused(api: Api, wanted: dict[str, str], word: str) -> None:
    message = api.post("/cron", {"name": "x", "type": "a", "args": [], **wanted}, status=400)["error"]["message"]
    assert message
    assert word in message
