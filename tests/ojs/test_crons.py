"""Crons over HTTP: what they may be called, and what their jobs may have."""

from datetime import timedelta
from typing import Any

import pytest

from dispatcher.models import CallQueue
from dispatcher.ojs.cron import fire_cron, list_crons
from dispatcher.ojs.models import EventLogEntry
from tests.ojs.builders import date_back
from tests.ojs.http_client import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]


@pytest.mark.parametrize("overlap", ["skip", "enqueue"])
@pytest.mark.parametrize("length", [59, 60, 190])
def test_a_cron_with_a_long_name_fires_as_any_other(api: Api, length: int, overlap: str) -> None:
    name = "n" * length
    wanted = {"name": name, "cron": "@daily", "overlap_policy": overlap, "type": "a"}
    api.post("/cron", wanted, status=201)
    assert fire_cron(name)
    assert fire_cron(name) is None, "this minute's was sent"
    date_back(timedelta(minutes=5))
    assert (fire_cron(name) is None) == (overlap == "skip")


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
    assert api.post("/cron", wanted, status=400)["error"]["details"]["field"] == path + next(iter(option))
    assert list_crons() == []


def test_the_options_of_a_cron_s_job_may_stand_beside_its_type(api: Api) -> None:
    template = {"type": "a", "queue": "far", "priority": 3, "options": {"priority": 5}, "pending": False}
    api.post("/cron", {"name": "x", "cron": "@daily", "job_template": template}, status=201)
    assert fire_cron("x")
    assert CallQueue.objects.values_list("queue", "priority").get() == ("far", 5)


def test_an_expression_that_is_too_long_to_be_kept_is_refused(api: Api) -> None:
    wanted = {"name": "x", "cron": f"* * * * {','.join(['mon', 'tue'] * 10)}", "type": "a"}
    assert "day_of_week" in api.post("/cron", wanted, status=400)["error"]["message"]


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


def test_the_next_run_of_a_cron_is_on_the_minute(api: Api) -> None:
    api.post("/cron", {"name": "often", "cron": "* * * * *", "type": "a"}, status=201)
    for _ in range(20):
        assert api.get("/cron/often")["cron"]["next_run_at"].endswith(":00.000Z")
