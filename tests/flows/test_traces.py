"""The flow of two traces: a call that another one lets in stays in the trace of its own sender."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connection

from project.services import Services
from tests.races.lockstep import concurrent

pytestmark = [concurrent, pytest.mark.broker, pytest.mark.slow]
DELIVERIES = ("direct", "broker")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def traced(services: Services, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Return what tests.flows.traced found."""
    database = urlsplit(services.database_url)._replace(path=f"/{connection.settings_dict['NAME']}").geturl()
    env = {
        **os.environ,
        "DATABASE_URL": database,
        "DJANGO_SETTINGS_MODULE": "tests.flows.settings",
        "FLOWS_NOTES": str(tmp_path / "notes"),
        "FLOWS_QUEUE": f"traces-{os.getpid()}",
    }
    command = [sys.executable, "-m", "tests.flows.traced", *request.param]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["delivery"] == request.param[1]
    assert (found["waiting"], found["ended"]) == ("available", ["completed", "completed"])
    return found


def one(spans: list[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """Return the only span with these values."""
    found = [span for span in spans if wanted.items() <= span.items()]
    assert len(found) == 1, (wanted, spans)
    return found[0]


@pytest.mark.parametrize("traced", [("opentelemetry", each) for each in DELIVERIES], indirect=True, ids=DELIVERIES)
def test_under_opentelemetry_a_call_that_waited_is_in_its_senders_trace(traced: dict[str, Any]) -> None:
    spans = traced["spans"]
    for name in ("first", "second"):
        sender = one(spans, name=name)
        publication = one(spans, name="apply_async/tests.flows.sample_tasks.echo", call=traced["calls"][name])
        run = one(spans, name="run/tests.flows.sample_tasks.echo", call=traced["calls"][name])
        assert publication["trace"] == run["trace"] == sender["trace"]
        assert (publication["parent"], run["parent"]) == (sender["id"], publication["id"])
    assert one(spans, name="first")["trace"] != one(spans, name="second")["trace"]


@pytest.mark.parametrize("traced", [("sentry", each) for each in DELIVERIES], indirect=True, ids=DELIVERIES)
def test_under_sentry_a_call_that_waited_is_in_its_senders_trace(traced: dict[str, Any]) -> None:
    spans = traced["spans"]
    for name in ("first", "second"):
        sender = one(spans, name=f"http.server {name}")
        publication = one(spans, name=f"queue.submit.celery {name}")
        run = one(spans, name="queue.task.celery tests.flows.sample_tasks.echo", call=traced["calls"][name])
        assert publication["trace"] == run["trace"] == sender["trace"]
        assert (publication["parent"], run["parent"]) == (sender["id"], publication["id"])
    assert one(spans, name="http.server first")["trace"] != one(spans, name="http.server second")["trace"]
