"""The settings of a deployment: secrets as files, TLS in front, the health checks."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import signals
from django.core.exceptions import ImproperlyConfigured
from django.test import Client, override_settings
from django.utils import timezone

from project import heartbeat, migrate
from project.environment import read, read_list, with_password

pytestmark = pytest.mark.django

ROOT = Path(__file__).resolve().parents[2]
REPORT = """
import json
import django
from django.conf import settings
django.setup()
from project.celery import app
names = ("SECRET_KEY", "ALLOWED_HOSTS", "CSRF_TRUSTED_ORIGINS", "SECURE_PROXY_SSL_HEADER",
         "SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_SSL_REDIRECT", "SECURE_HSTS_SECONDS")
print(json.dumps({name: getattr(settings, name) for name in names}
                 | {"DATABASE": settings.DATABASES["default"], "BROKER": app.conf.broker_url}))
"""
TLS = {
    "BEHIND_TLS_PROXY": "1",
    "ALLOWED_HOSTS": "jobs.example.com",
    "CSRF_TRUSTED_ORIGINS": "https://jobs.example.com, https://admin.example.com",
    "HSTS_SECONDS": "86400",
}


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", **variables}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_a_secret_is_read_from_its_file_and_one_that_is_missing_or_empty_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "password"
    monkeypatch.setenv("PROBE_FILE", str(path))
    with pytest.raises(ImproperlyConfigured, match="PROBE_FILE: cannot read"):
        read("PROBE")
    path.write_text("\n")
    with pytest.raises(ImproperlyConfigured, match="is empty"):
        read("PROBE")
    path.write_text("pass word\n")
    assert read("PROBE") == "pass word"
    monkeypatch.setenv("PROBE", "other")
    with pytest.raises(ImproperlyConfigured, match="Both PROBE and PROBE_FILE are set"):
        read("PROBE")


def test_lists_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE", "a, b,,")
    assert read_list("PROBE") == ["a", "b"]
    assert read_list("PROBE_OTHER") == []


@pytest.mark.parametrize(
    ("url", "password", "with_it"),
    [
        ("postgresql://project@postgres:5432/project", "a/b@c", "postgresql://project:a%2Fb%40c@postgres:5432/project"),
        ("amqp://project@rabbitmq:5672//", "secret", "amqp://project:secret@rabbitmq:5672//"),
        ("amqp://project:old@rabbitmq:5672//", "new", "amqp://project:new@rabbitmq:5672//"),
        ("redis://redis:6379/0", "secret", "redis://:secret@redis:6379/0"),
        ("redis://redis:6379/0", "", "redis://redis:6379/0"),
    ],
)
def test_a_password_becomes_part_of_the_address(url: str, password: str, with_it: str) -> None:
    assert with_password(url, password) == with_it


def test_the_settings_take_secrets_from_files(tmp_path: Path) -> None:
    files = {"DATABASE_PASSWORD_FILE": "database", "BROKER_PASSWORD_FILE": "broker", "SECRET_KEY_FILE": "key"}
    for name in files.values():
        (tmp_path / name).write_text(f"{name}/@:secret\n")
    servers = {"DATABASE_URL": "postgresql://project@postgres/project", "BROKER_ADDRESS": "amqp://project@rabbitmq//"}
    given = servers | {variable: str(tmp_path / name) for variable, name in files.items()}
    settings = json.loads(run("-c", REPORT, CELERY_BROKER_URL="", **given).stdout)
    assert settings["SECRET_KEY"] == "key/@:secret"  # noqa: S105 -- of this test
    assert settings["BROKER"] == "amqp://project:broker%2F%40%3Asecret@rabbitmq//"
    assert (settings["DATABASE"]["USER"], settings["DATABASE"]["PASSWORD"]) == ("project", "database/@:secret")


def test_with_tls_in_front_django_has_nothing_to_warn_of() -> None:
    made = run(
        "manage.py", "check", "--deploy", "--fail-level", "WARNING", SECRET_KEY="x7" * 30 + "!{}&abcdefgh", **TLS
    )
    # Whether subdomains have TLS, too, is for the owner of the domain to say.
    warned = {line.split(")")[0] for line in made.stderr.splitlines() if line.startswith("?: (")}
    assert warned <= {"?: (security.W005", "?: (security.W021"}


def test_tls_in_front_is_believed_only_where_it_is_set() -> None:
    plain, secure = (json.loads(run("-c", REPORT, **env).stdout) for env in ({}, TLS))
    names = ("SECURE_PROXY_SSL_HEADER", "SESSION_COOKIE_SECURE", "SECURE_SSL_REDIRECT")
    assert [plain[name] for name in names] == [None, False, False]
    assert secure["SECURE_PROXY_SSL_HEADER"] == ["HTTP_X_FORWARDED_PROTO", "https"]
    assert (secure["SESSION_COOKIE_SECURE"], secure["CSRF_COOKIE_SECURE"]) == (True, True)
    assert secure["SECURE_HSTS_SECONDS"] == 86400
    assert secure["CSRF_TRUSTED_ORIGINS"] == ["https://jobs.example.com", "https://admin.example.com"]


@pytest.mark.django_db
@pytest.mark.parametrize("hosts", [["jobs.example.com"], [".example.com"], []])
def test_the_health_check_passes_with_any_allowed_hosts_and_behind_tls(hosts: list[str]) -> None:
    with override_settings(ALLOWED_HOSTS=hosts, SECURE_SSL_REDIRECT=True, DEBUG=False):
        client = Client(headers={"host": "127.0.0.1:8000"})
        assert client.get("/healthz").status_code == 200
        # Nothing else does.
        assert client.get("/admin/login/").status_code == 400


@pytest.mark.django_db
def test_the_health_check_fails_without_a_database(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import OperationalError, connection  # noqa: PLC0415 -- there are no settings when this file is read

    def refuse() -> None:
        raise OperationalError

    monkeypatch.setattr(connection, "cursor", refuse)
    assert Client().get("/healthz").status_code == 503


def test_a_worker_touches_its_file_with_every_heartbeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for signal in (signals.heartbeat_sent, signals.beat_init, signals.after_task_publish):
        monkeypatch.setattr(signal, "receivers", [])
    path = tmp_path / "heartbeat"
    heartbeat.touch_while_working(path)
    signals.after_task_publish.send(sender="any")
    assert not path.exists(), "a worker that sends messages does not show by this that it takes any"
    signals.heartbeat_sent.send(sender=None)
    assert path.exists()
    path.unlink()
    signals.beat_init.send(sender=None)
    assert not path.exists(), "beat shows that it works by what it sends"
    signals.after_task_publish.send(sender="dispatcher.tick")
    assert path.exists()


@pytest.mark.django_db
def test_migrations_do_not_run_beside_live_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatcher.models import Worker  # noqa: PLC0415 -- there are no settings when this file is read

    # A worker of another test may end after the tables of that test were emptied.
    Worker.objects.all().delete()
    ran: list[str] = []
    monkeypatch.setattr(migrate, "call_command", lambda name, **_: ran.append(name))
    now = timezone.now()

    def worker(name: str, **times: Any) -> Worker:
        known = {"host": "h", "pid": 1, "pool": "prefork", "processes": 1, "queues": ["celery"], "seen_at": now}
        began = {"started_at": now - timedelta(hours=1), "serves_until": now}
        return Worker.objects.create(id=uuid4(), name=name, **(known | began | times))

    worker("stopped@h", stopped_at=now)
    worker("silent@h", seen_at=now - timedelta(hours=1))
    live = worker("live@h")
    migrate.main()
    assert ran == ["migrate"], "there is nothing to migrate"
    monkeypatch.setattr(migrate, "has_unapplied_migrations", lambda: True)
    with pytest.raises(SystemExit, match=r"alive: live@h\.\n.*docker compose stop"):
        migrate.main()
    live.delete()
    migrate.main()
    assert ran == ["migrate"] * 2
