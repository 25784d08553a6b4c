"""The HTTP API in a project without django-celery-beat, whose workers tick by themselves."""

import pytest
from django.db.models.functions import Now
from django.test import Client

from dispatcher.celery import periodic
from dispatcher.models import CallQueue
from dispatcher.ojs.cron import FIRE
from dispatcher.ojs.models import Cron, Workflow
from tests.ojs.http_client import Api

pytestmark = [pytest.mark.django_db, pytest.mark.django]


def test_a_workflow_starts(api: Api) -> None:
    made = api.post("/workflows", {"type": "chain", "steps": [{"type": "a", "args": []}]}, status=201)["workflow"]
    assert Workflow.objects.get().id.hex == made["id"].replace("-", "")


def test_a_subscription_is_made(api: Api) -> None:
    wanted = {"url": "https://example.org/hook", "events": ["job.completed"]}
    assert api.post("/webhooks/subscriptions", wanted, status=201)


def test_a_cron_fires_when_its_time_has_come(api: Api) -> None:
    api.post("/cron", {"name": "n", "cron": "0 9 * * *", "job_template": {"type": "a", "args": []}}, status=201)
    assert Client().get("/ojs/manifest").json()["capabilities"]["cron_jobs"] is True
    assert periodic.run(FIRE) == 0
    Cron.objects.update(next_run_at=Now())
    assert periodic.run(FIRE) == 1
    assert periodic.run(FIRE) == 0
    assert CallQueue.objects.get().task == "a"
    assert api.get("/cron/n")["cron"]["run_count"] == 1
