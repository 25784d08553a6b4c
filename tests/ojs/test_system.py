"""The manifest, the schema, and where the API is mounted."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from django.test import override_settings
from django.urls import include, path

from dispatcher import ojs
from dispatcher.models import CallQueue, Queue
from dispatcher.ojs.api import api as ojs_api
from dispatcher.ojs.wire import HINTS
from tests.ojs.http_client import Api

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("open_http"), pytest.mark.django]


def test_the_manifest_claims_what_is_there(api: Api) -> None:
    reply = json.loads(api.client.get("/ojs/manifest").content)
    assert (reply["specversion"], reply["conformance_level"], reply["backend"]) == ("1.0", 4, "postgres")
    assert reply["capabilities"]["schema_validation"] is False


@pytest.fixture
def under_a_path() -> Iterator[None]:
    """Mount the API under the path `under/`."""
    urls = ModuleType("urls_under_a_path")
    urls.urlpatterns = [path("under/", include("dispatcher.ojs.urls"))]  # type: ignore[attr-defined]
    with override_settings(ROOT_URLCONF=urls):
        yield


@pytest.mark.usefixtures("under_a_path")
def test_under_a_path_what_is_named_can_be_reached(api: Api) -> None:
    endpoints = api.client.get("/under/ojs/manifest").json()["endpoints"]
    assert endpoints["base_url"] == "/under/ojs/v1"
    assert [api.client.get(endpoints[name]).status_code for name in ("manifest", "health")] == [200, 200]
    schema = api.client.get("/under/ojs/v1/openapi.json").json()
    assert all(each.startswith("/under/ojs/v1/") for each in schema["paths"])
    job = {"type": "a", "args": []}
    for sent, body in (("jobs", job), ("workflows", {"type": "chain", "steps": [job]})):
        made = api.client.post(f"/under/ojs/v1/{sent}", body, content_type="application/json")
        assert api.client.get(made.headers["Location"]).status_code == 200
    error = api.client.get("/under/ojs/v1/jobs/none").json()["error"]
    assert error["doc_url"] == "/under/ojs/v1/errors#not_found"


def test_an_error_names_where_its_code_is_documented(api: Api) -> None:
    error = api.get("/jobs/none", status=404)["error"]
    page, _, code = error["doc_url"].partition("#")
    assert (error["docs_url"], code) == (error["doc_url"], "not_found")
    listed = api.client.get(page).json()["errors"]
    assert {"code": code, "hint": error["hint"]} in listed


def test_every_code_of_an_error_is_documented() -> None:
    sources = Path(ojs.__path__[0]).rglob("*.py")
    codes = {code for each in sources for code in re.findall(r'Problem\(\s*\d{3}, "(\w+)"', each.read_text())}
    assert codes == set(HINTS)


def test_the_schema_is_made_once_and_not_sent_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    first = api.client.get("/ojs/v1/openapi.json")
    monkeypatch.setattr(type(ojs_api), "get_openapi_schema", lambda *_, **__: pytest.fail("made again"))
    assert api.client.get("/ojs/v1/openapi.json").content == first.content
    known = {"If-None-Match": first.headers["ETag"]}
    again = api.client.get("/ojs/v1/openapi.json", headers=known)
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", first.headers["ETag"])


def test_queues_of_python_are_not_known_before_they_are_named(api: Api) -> None:
    CallQueue.objects.send("noop", queue="celery")
    assert not Queue.objects.exists()
    api.get("/queues/celery/stats")
