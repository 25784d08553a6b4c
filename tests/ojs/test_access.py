"""Who may do what over HTTP."""

from base64 import b64encode
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from dispatcher import api
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.ojs import auth
from dispatcher.ojs.auth import make_token
from dispatcher.ojs.models import ApiToken
from tests.ojs.http_client import MEDIA, Api, Holder

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("open_http"), pytest.mark.django]


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


@pytest.mark.parametrize("body", [b"{", b"[" * 100_000, b" " * 3_000_000], ids=["no JSON", "deep", "large"])
@pytest.mark.parametrize("who", ["nobody", "a customer"])
def test_without_a_right_no_body_is_read(api: Api, settings: Settings, who: str, body: bytes) -> None:
    settings.DISPATCHER = {}
    if who != "nobody":
        api.client.force_login(User.objects.create_user("customer"))
    for method, path in (
        ("POST", "/jobs"),
        ("POST", "/workers/fetch"),
        ("PUT", "/rate-limits/api"),
        ("PATCH", "/cron/a"),
        ("DELETE", "/admin/queues/a/jobs"),
        ("POST", "/nowhere"),
    ):
        api.ask(method, path, body, status=401 if who == "nobody" else 403)


def test_a_token_allows_what_its_scopes_say(holder: Holder) -> None:
    api = holder("send:mail*", "fetch:mail")
    job = api.push(options={"queue": "mail"})
    api.push(options={"queue": "mail-bulk"})
    api.post("/jobs", {"type": "a", "args": []}, status=403)
    api.post("/jobs/batch", {"jobs": [{"type": "a", "args": [], "options": {"queue": "x"}}]}, status=403)
    api.post("/workers/fetch", {"queues": ["mail", "mail-bulk"]}, status=403)
    assert [each["id"] for each in api.fetch("mail")] == [job["id"]]
    api.get(f"/jobs/{job['id']}", status=403)
    api.post("/queues/mail/pause", status=403)
    api.ack(job)


def test_a_token_that_is_unknown_or_expired_is_refused(settings: Settings) -> None:
    settings.DISPATCHER = {}
    Api(Authorization="Bearer nonsense").get("/queues", status=401)
    late = Api(Authorization=f"Bearer {make_token('late', ['read'])}")
    ApiToken.objects.filter(name="late").update(expires_at=ApiToken.objects.get(name="late").created_at)
    late.get("/queues", status=401)


def may_be_tried_again(answer: dict[str, Any]) -> str:
    """Return the code of an error that says so."""
    assert answer["error"]["retryable"] is True
    return str(answer["error"]["code"])


@pytest.fixture
def away() -> Iterator[None]:
    """Look for the database where no server answers."""
    connection.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connection.settings_dict, "PORT", "1")
        yield


@pytest.mark.usefixtures("away")
def test_a_token_that_can_t_be_looked_up_for_now_may_be_tried_again() -> None:
    api = Api(Authorization="Bearer some-token")
    for method, path in (("GET", "/queues"), ("POST", "/jobs"), ("GET", "/health")):
        answer = api.ask(method, path, {"type": "a", "args": []}, status=503)
        assert may_be_tried_again(answer) == "backend_error"
        assert answer["error"]["request_id"] == api.last.headers["X-Request-Id"]
        assert (api.last.headers["Retry-After"], api.last.headers["Content-Type"]) == ("1", MEDIA)


def test_a_request_to_a_database_that_is_read_only_for_now_may_be_tried_again(open_http: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    api = Api()
    assert may_be_tried_again(api.post("/jobs", {"type": "a", "args": []}, status=503)) == "backend_error"
    assert api.last.headers["Retry-After"] == "1"
    # The connection to what may be a replica now was given up.
    api.push()


def test_a_fault_while_a_token_is_looked_up_is_an_error_object(holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    api = holder("read")
    monkeypatch.setattr(auth, "_digest", lambda _: 1 / 0)
    assert may_be_tried_again(api.get("/queues", status=500)) == "backend_error"


def test_a_request_is_no_transaction_whatever_the_project_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", value=True)
    seen: list[bool] = []

    def look(_: object) -> auth.Access:
        seen.append(connection.in_atomic_block)
        return auth.Access(scopes=("read",))

    monkeypatch.setattr("dispatcher.ojs.api.authenticate", look)
    Api().get("/queues")
    assert seen == [False]


def test_the_token_itself_is_not_kept() -> None:
    token = make_token("me", ["read"])
    with connection.cursor() as cursor:
        cursor.execute("SELECT row_to_json(token)::text FROM dispatcher_ojs_apitoken AS token")
        assert token not in cursor.fetchone()[0]


def test_a_name_has_one_token_and_gets_another_when_that_is_revoked(holder: Holder) -> None:
    first = holder("read")
    first.get("/queues")
    name = ApiToken.objects.get().name
    with pytest.raises(CommandError, match="already; revoke it first"):
        call_command("dispatcher_token", name, "read")
    call_command("dispatcher_token", name, "--revoke")
    said = StringIO()
    call_command("dispatcher_token", name, "send", stdout=said)
    first.get("/queues", status=401)
    Api(Authorization=f"Bearer {said.getvalue().strip()}").push()
    assert ApiToken.objects.get().scopes == ["send"]


def test_a_token_may_be_the_password_of_http_basic(settings: Settings) -> None:
    settings.DISPATCHER = {}
    token = make_token("me", ["read"])
    for password, status in ((token, 200), (f"{token}x", 401), ("", 401)):
        given = b64encode(f"anybody:{password}".encode()).decode()
        Api(Authorization=f"Basic {given}").get("/queues", status=status)
    for nonsense in ("Basic", "Basic x", "Basic //8=", "Basic ä"):
        Api(Authorization=nonsense).get("/queues", status=401)
    call_command("dispatcher_token", "me", "--revoke")
    given = b64encode(f"me:{token}".encode()).decode()
    Api(Authorization=f"Basic {given}").get("/queues", status=401)


def test_a_token_is_limited_by_its_own_key(holder: Holder) -> None:
    RateLimitKey.objects.declare("token:me", rate=(2, 60))
    api = holder("read")
    api.get("/queues")
    assert (api.last.headers["X-RateLimit-Limit"], api.last.headers["X-RateLimit-Remaining"]) == ("2", "1")
    api.get("/queues")
    assert may_be_tried_again(api.get("/queues", status=429)) == "rate_limited"
    assert 1 <= int(api.last.headers["Retry-After"]) <= 61
    assert api.last.headers["X-RateLimit-Remaining"] == "0"


def test_a_token_is_limited_by_an_override_while_it_is_in_force(holder: Holder) -> None:
    RateLimitKey.objects.declare("token:me", rate=(9, 60))
    row = holder("read")
    api.override("token:me", until=timezone.now() + timedelta(hours=1), rate=(2, 60))
    row.get("/queues")
    row.get("/queues")
    assert (row.last.headers["X-RateLimit-Limit"], row.last.headers["X-RateLimit-Remaining"]) == ("2", "0")
    row.get("/queues", status=429)
    api.override("token:me", until=timezone.now() + timedelta(hours=1), rate=None)
    for _ in range(7):
        row.get("/queues")
        assert "X-RateLimit-Limit" not in row.last.headers
    api.end_override("token:me")
    # What was asked meanwhile counts.
    row.get("/queues", status=429)


@pytest.mark.parametrize("limits", [{}, {"rate": (9, 60)}])
def test_a_token_whose_key_is_paused_or_blocked_is_refused(holder: Holder, limits: dict[str, Any]) -> None:
    RateLimitKey.objects.declare("token:me", **limits)
    row = holder("read")
    api.pause("token:me")
    assert row.get("/queues", status=429)["error"]["code"] == "rate_limited"
    assert row.last.headers["Retry-After"] == "60"
    api.resume("token:me")
    row.get("/queues")
    api.block("token:me", timedelta(seconds=30))
    row.get("/queues", status=429)
    assert 28 <= int(row.last.headers["Retry-After"]) <= 30
    api.resume("token:me")
    api.override("token:me", until=timezone.now() + timedelta(hours=1), concurrency=0)
    row.get("/queues", status=429)


def test_people_do_over_http_what_they_may_in_the_admin_if_their_page_sends_the_token(settings: Settings) -> None:
    settings.DISPATCHER = {}
    user = User.objects.create_user("clerk", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_callqueue"))
    api = Api()
    api.client = Client(enforce_csrf_checks=True)
    api.client.force_login(user)
    api.get("/queues")
    api.get("/admin/workers")
    assert "CSRF" in api.post("/queues/a/pause", status=403)["error"]["message"]


@pytest.mark.parametrize(
    ("who", "allowed"),
    [
        ({"is_staff": True, "is_superuser": True}, {"send", "fetch", "read", "admin"}),
        ({"is_staff": True}, {"send", "read"}),
        ({"is_superuser": True}, set()),
        ({}, set()),
    ],
    ids=["a superuser", "a clerk", "a superuser who is no staff", "a customer"],
)
def test_what_steers_takes_a_superuser_since_it_is_more_than_any_permission_of_the_admin(
    settings: Settings, who: dict[str, bool], allowed: set[str]
) -> None:
    settings.DISPATCHER = {}
    user = User.objects.create_user("clerk", **who)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="dispatcher"))
    api = Api()
    api.client.force_login(user)
    for scope, method, path, body in (
        ("send", "POST", "/jobs", {"type": "a", "args": []}),
        ("fetch", "POST", "/workers/fetch", {"queues": ["default"]}),
        ("read", "GET", "/admin/workers", None),
        ("admin", "POST", "/queues/a/pause", {}),
    ):
        status = (201 if scope == "send" else 200) if scope in allowed else 403
        api.ask(method, path, body, status=status)


def test_pages_of_other_origins_are_let_in_only_if_they_are_named(api: Api, settings: Settings) -> None:
    api.get("/health", Origin="https://app.example.org")
    assert "Access-Control-Allow-Origin" not in api.last.headers
    settings.DISPATCHER = {"http_origins": ["https://app.example.org"]}
    api.ask("OPTIONS", "/jobs", status=204, Origin="https://app.example.org")
    assert api.last.headers["Access-Control-Allow-Origin"] == "https://app.example.org"
    api.ask("OPTIONS", "/jobs", status=204, Origin="https://evil.example.org")
    assert "Access-Control-Allow-Origin" not in api.last.headers


def test_the_token_command_says_what_is_wrong() -> None:
    for words, *arguments in (("NAME",), ("scope", "me"), ("dance", "me", "dance"), ("no token", "x", "--revoke")):
        with pytest.raises(CommandError, match=words):
            call_command("dispatcher_token", *arguments)
