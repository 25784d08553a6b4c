"""The published schema of the HTTP API: what it says is what comes, for any request."""

import json
from typing import Any

import pytest
import schemathesis
from django.core.wsgi import get_wsgi_application
from django.test import Client
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from pytest_django import Settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

PATH = "/ojs/v1/openapi.json"
STREAMS = ("/events/stream", "/jobs/{job_id}/events")
"""They do not end by themselves."""

thoroughly = hypothesis_settings(
    max_examples=8, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.django_db(transaction=True)
def test_whatever_is_asked_the_answer_is_as_the_schema_says(settings: Settings) -> None:
    settings.DISPATCHER = {"http_anonymous": ["admin"]}
    schema = schemathesis.openapi.from_wsgi(PATH, get_wsgi_application())
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path.endswith(STREAMS):
            continue

        @thoroughly
        @given(case=operation.as_strategy())
        def ask(case: Any) -> None:
            case.call_and_validate(checks=CHECKS)

        ask()
        asked += 1
    assert asked > 40


@pytest.mark.django_db
def test_the_schema_is_published_and_names_every_endpoint() -> None:
    reply = json.loads(Client().get(PATH).content)
    assert {"/ojs/v1/jobs", "/ojs/v1/workers/fetch", "/ojs/v1/rate-limits/{key}"} <= set(reply["paths"])
    for path, operations in reply["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], f"{method} {path}"


@pytest.mark.django_db
def test_the_schema_names_what_a_list_may_be_asked_for() -> None:
    paths = json.loads(Client().get(PATH).content)["paths"]
    page = {"limit", "per_page", "page", "offset", "cursor"}
    for path, named in (
        ("/admin/jobs", page | {"queue", "type", "state", "since", "until"}),
        ("/dead-letter", page | {"queue", "type"}),
        ("/cron", page | {"enabled"}),
        ("/queues", page),
        ("/events", {"types", "queues", "job_types", "limit", "after"}),
    ):
        assert {each["name"] for each in paths[f"/ojs/v1{path}"]["get"]["parameters"]} == named
