"""A project without dispatcher.ojs has nothing of it, and delivery over HTTP is refused by name with the remedy."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.test import Client
from django.urls import reverse

from dispatcher import engine, extension, lanes
from dispatcher.checks.settings import check_settings
from dispatcher.errors import ConfigurationError
from dispatcher.models import Queue, Slot
from dispatcher.states import State
from tests.builders import T0, key, seen, started

ROOT = Path(__file__).resolve().parents[2]
REMEDY = 'add "dispatcher.ojs" to INSTALLED_APPS'


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in a project without the app; no server is needed."""
    env = {**os.environ, "WITHOUT_OJS": "1", "DJANGO_SETTINGS_MODULE": "project.settings", "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def _without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the app not be installed."""
    monkeypatch.setattr(extension._Registered, "extension", extension.Extension())  # noqa: SLF001 -- as at the start


def test_no_module_table_column_statement_task_or_command_of_the_app_is_there() -> None:
    look = """
import sys, django
django.setup()
from django.apps import apps
from django.core.management import get_commands
from django.urls import get_resolver
from dispatcher import sql
from dispatcher.models import CallQueue
from project.celery import app
app.loader.import_default_modules()
get_resolver().url_patterns
print([name for name in sys.modules if name.startswith("dispatcher.ojs")])
print([model for model in apps.get_models() if model._meta.app_label == "dispatcher_ojs"])
names = {field.name for field in CallQueue._meta.get_fields()}
print(sorted(names & {"job", "envelope", "unique_key", "visibility", "timeout", "progress"}))
print([name for name in sql.names() if "dispatcher_ojs" in sql.statement(name).text])
print(sorted(set(app.tasks) & {"dispatcher.advance", "dispatcher.deliver_webhooks", "dispatcher.fire_crons"}))
print([name for name in get_commands() if name == "dispatcher_token"])
"""
    done = run("-c", look)
    assert (done.stdout.splitlines(), done.returncode) == (["[]"] * 6, 0), done.stderr


def test_its_migrations_and_checks_are_clean() -> None:
    for words in (["check"], ["makemigrations", "--check", "--dry-run"]):
        done = run("-W", "ignore::RuntimeWarning", "manage.py", *words)
        assert done.returncode == 0, done.stderr


def test_to_use_the_app_without_installing_it_is_refused() -> None:
    done = run("-c", "import django; django.setup(); import dispatcher.ojs.urls")
    assert "ConfigurationError" in done.stderr
    assert REMEDY in done.stderr


@pytest.mark.ojs
@pytest.mark.parametrize("name", ["ninja", "requests"])
def test_the_app_without_the_libraries_of_its_extra_names_the_extra(name: str) -> None:
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", "PYTHONPATH": str(ROOT)}
    code = f"import sys; sys.modules[{name!r}] = None; import django; django.setup()"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"dispatcher.errors.ConfigurationError: dispatcher.ojs needs {name}, which the extra http installs: "
        'pip install "django-callqueue[http]".'
    )


@pytest.mark.usefixtures("_without")
def test_delivery_over_http_is_refused_in_the_settings(settings: Any) -> None:
    settings.DISPATCHER = {"delivery": {"mail*": "http"}}
    (found,) = check_settings()
    assert (found.id, "'mail*'" in found.msg, REMEDY in str(found.hint)) == ("dispatcher.E017", True, True)
    with pytest.raises(ConfigurationError, match=r"'mail\*'.*add \"dispatcher.ojs\""):
        lanes.declared_delivery("mail.bulk")


@pytest.mark.django_db
@pytest.mark.usefixtures("_without")
def test_delivery_over_http_is_refused_in_the_admin(boss: Client) -> None:
    fields = {"name": "mail", "weight": "1", "on_full": "reject", "warn_at": "0.8", "delivery": "http"}
    page = boss.post(reverse("admin:dispatcher_queue_add"), fields).content.decode()
    assert "INSTALLED_APPS" in page
    assert not Queue.objects.exists()


@pytest.mark.django_db
@pytest.mark.usefixtures("_without")
def test_a_queue_that_was_fetched_from_can_be_saved_in_the_admin_while_calls_are_in_flight(boss: Client) -> None:
    started(queue="mail")
    Queue.objects.update_or_create(name="mail", defaults={"delivery": "http"})
    fields = {"weight": "1", "on_full": "reject", "warn_at": "0.8", "max_depth": "7"}
    assert boss.post(reverse("admin:dispatcher_queue_change", args=["mail"]), fields).status_code == 302
    assert Queue.objects.get().max_depth == 7


@pytest.mark.django_db
@pytest.mark.usefixtures("_without")
def test_a_queue_that_is_fetched_from_is_named_by_the_check_of_the_database() -> None:
    Queue.objects.create(name="mail", delivery="http")
    with pytest.raises(SystemCheckError, match=r"E017.*'mail'"):
        call_command("check", databases=[connection.alias])


@pytest.mark.django_db
@pytest.mark.usefixtures("_without")
def test_a_call_that_was_fetched_before_the_app_was_taken_out_gives_its_room_back() -> None:
    key("api", concurrency=1)
    call = started("api", queue="mail")
    Slot.objects.update(pulled_until=T0, lease_until=T0)
    engine.recover(now=T0 + timedelta(hours=1))
    assert (seen(call).state, Slot.objects.count()) == (State.RETRYABLE, 0)
