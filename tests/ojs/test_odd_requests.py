"""What clients and servers do that is unusual: chunked bodies, HEAD, and NUL where text is expected."""

import json
from io import BytesIO
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.test import Client
from pytest_django import Settings

from dispatcher.models import CallQueue
from tests.ojs.http_client import MEDIA, Api, error_of, field_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]

JOB = json.dumps({"type": "a", "args": []}).encode()


def send_chunked(api: Api, body: bytes, **environ: Any) -> Any:
    """Send a body as a server gives one that came in chunks: without its length."""
    chunked = {"wsgi.input": BytesIO(body), "HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_TYPE": MEDIA, **environ}
    api.last = api.client.request(REQUEST_METHOD="POST", PATH_INFO="/ojs/v1/jobs", **chunked)
    return json.loads(api.last.content)


def test_a_body_in_chunks_is_read_to_its_end(api: Api) -> None:
    assert send_chunked(api, JOB, **{"wsgi.input_terminated": True})["job"]["type"] == "a"
    assert CallQueue.objects.count() == 1


def test_a_body_in_chunks_is_refused_where_the_server_does_not_show_its_end(api: Api) -> None:
    code, message = error_of(send_chunked(api, JOB))
    assert (api.last.status_code, code, "Content-Length" in message) == (411, "invalid_request", True)


def test_a_body_in_chunks_is_bounded(api: Api, settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = len(JOB) - 1
    code, _ = error_of(send_chunked(api, JOB, **{"wsgi.input_terminated": True}))
    assert (api.last.status_code, code) == (413, "envelope_too_large")


@pytest.mark.parametrize("path", ["/health", "/queues", "/jobs/{}", "/events/stream", "/openapi.json"])
def test_head_is_answered_as_get_without_its_body(api: Api, path: str) -> None:
    path = f"/ojs/v1{path.format(api.push()['id'])}"
    answer = api.client.head(path)
    assert (answer.status_code, answer.getvalue()) == (200, b"")
    if "stream" not in path:
        whole = api.client.get(path)
        assert answer.headers["Content-Type"] == whole.headers["Content-Type"]
        assert int(answer.headers["Content-Length"]) > 2


def test_head_is_refused_where_get_is(api: Api) -> None:
    answer = api.client.head("/ojs/v1/workers/fetch")
    assert (answer.status_code, answer.headers["Allow"], answer.content) == (405, "POST", b"")
    assert api.client.head(f"/ojs/v1/jobs/{'0' * 32}").status_code == 404


PAGES = [
    model
    for model in apps.get_models()
    if model._meta.app_label.startswith("dispatcher") and admin.site.is_registered(model)
]


@pytest.mark.parametrize("model", PAGES, ids=lambda model: model._meta.model_name)
def test_nul_in_a_filter_of_the_admin_finds_nothing(client: Client, model: Any) -> None:
    client.force_login(User.objects.create_superuser("boss"))
    page = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
    site = admin.site.get_model_admin(model)
    named = [getattr(each, "parameter_name", each) for each in site.list_filter]
    for name in ("q", "p", "o", *named, *(f"{name}__exact" for name in named)):
        assert client.get(f"{page}?{name}=%00").status_code < 500, name
    assert client.get(f"{page}%00/change/").status_code < 500


def test_an_idempotency_key_is_refused_with_what_takes_its_place(api: Api) -> None:
    key = {"Idempotency-Key": "order-7"}
    answer = api.post("/jobs", {"type": "a", "args": []}, status=400, **key)
    assert (field_of(answer), "`id`" in error_of(answer)[1]) == ("Idempotency-Key", True)
    assert not CallQueue.objects.exists()
    api.get("/health", **key)


@pytest.mark.parametrize("path", ["/admin/jobs?queue=%00", "/queues/%00/stats", "/events?queues=%00", "/jobs/%00"])
def test_nul_in_a_path_or_a_query_is_refused(api: Api, path: str) -> None:
    api.get(path, status=400)
