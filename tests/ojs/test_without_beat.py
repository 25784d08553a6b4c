"""The HTTP API in a project without django-celery-beat, whose workers tick by themselves."""

import pytest
from django.apps import apps
from django.test import Client

from dispatcher.ojs.models import Workflow
from tests.ojs.http_client import Api

pytestmark = [pytest.mark.django_db, pytest.mark.django]


@pytest.fixture(autouse=True)
def _without_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a project that has not installed django-celery-beat."""
    is_installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name != "django_celery_beat" and is_installed(name))


def test_a_workflow_starts(api: Api) -> None:
    made = api.post("/workflows", {"type": "chain", "steps": [{"type": "a", "args": []}]}, status=201)["workflow"]
    assert Workflow.objects.get().id.hex == made["id"].replace("-", "")


def test_a_subscription_is_made(api: Api) -> None:
    wanted = {"url": "https://example.org/hook", "events": ["job.completed"]}
    assert api.post("/webhooks/subscriptions", wanted, status=201)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_crons_are_refused_with_the_remedy(api: Api, method: str) -> None:
    wanted = {"name": "n", "cron": "0 9 * * *", "job_template": {"type": "a", "args": []}}
    refused = api.ask(method, "/cron", wanted if method == "POST" else None, status=422)
    assert refused["error"]["code"] == "unsupported"
    assert 'add "django_celery_beat" to INSTALLED_APPS' in refused["error"]["message"]
    assert Client().get("/ojs/manifest").json()["capabilities"]["cron_jobs"] is False
