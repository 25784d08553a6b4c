"""A database that is down, or that lacks migrations: two lines that name the remedy, for every command and a worker."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from django.core import checks
from django.core.management import call_command, get_commands
from django.db import InternalError, OperationalError, connection, transaction
from psycopg import sql as pg

from dispatcher import sql
from dispatcher.celery import heartbeat
from dispatcher.errors import DatabaseNotReady
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.sql import faults
from project.processes import free_port
from project.services import Services, create_database
from tests.db_admin import monitor

pytestmark = pytest.mark.django

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    name: words
    for name, words in {
        "rate_limit_status": [],
        "dispatcher_audit": [],
        "dispatcher_limits": ["show"],
        "explain_take": ["api"],
        "dispatcher_token": ["--list"],
    }.items()
    if name in get_commands()
}
FAILURES = {name: 2 if name == "dispatcher_audit" else 1 for name in COMMANDS}


def run(name: str, database_url: str) -> tuple[int, list[str]]:
    """Run a command on a database; return its exit code and what it writes to stderr."""
    done = subprocess.run(
        [sys.executable, "manage.py", name, *COMMANDS[name]],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr.strip().splitlines()


@pytest.fixture(scope="module")
def empty(services: Services) -> Iterator[str]:
    """Have a database without tables."""
    name = f"empty_{uuid4().hex[:12]}"
    server = urlsplit(services.database_url)._replace(path="/postgres").geturl()
    create_database(server, name, replace=True)
    yield urlsplit(services.database_url)._replace(path=f"/{name}").geturl()
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(pg.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(pg.Identifier(name)))


def test_every_command_of_the_app_is_tried_here() -> None:
    # One of them reads no database.
    known = {name for name, app in get_commands().items() if app.startswith("dispatcher")}
    assert known == {*COMMANDS, "dispatcher_tasks"}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_database_that_is_down_or_lacks_migrations_gives_two_lines(name: str, empty: str) -> None:
    down = f"postgresql://nobody@127.0.0.1:{free_port()}/none"
    for url, begin, remedy in (
        (down, "The database 'default' is unavailable: ", "Start it, or correct DATABASES['default'] in the settings;"),
        (
            empty,
            "The tables or functions of the dispatcher are missing, or older than its code: relation ",
            "Run: python manage.py",
        ),
    ):
        code, lines = run(name, url)
        assert (code, len(lines)) == (FAILURES[name], 2), lines
        assert lines[0].startswith(f"CommandError: {begin}")
        assert lines[1].startswith(remedy)


def last_lines(*lines: str, url: str) -> list[str]:
    """Run code in the project on a database, and return the last two lines of its traceback."""
    code = "\n".join(["import django", "from django.conf import settings", *lines])
    env = {**os.environ, "DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "project.settings", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    return done.stderr.strip().splitlines()[-2:]


SQLITE = "settings.DATABASES['default'] = {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}"
SEND = ("django.setup()", "from dispatcher.models import CallQueue", "CallQueue.objects.send('dispatcher.tick')")


def test_a_send_to_a_database_that_is_not_ready_names_the_fault_and_the_remedy(empty: str) -> None:
    problem, remedy = last_lines(*SEND, url=empty)
    assert problem.startswith(
        "dispatcher.sql.errors.NotMigrated: The tables or functions of the dispatcher are missing, or older than its "
    )
    assert remedy == "Run: python manage.py migrate"
    problem, remedy = last_lines(SQLITE, *SEND, url=empty)
    assert problem == (
        "dispatcher.sql.errors.NotPostgreSQL: The database 'default' is sqlite; the dispatcher needs PostgreSQL 14 or "
        "newer."
    )
    assert remedy.endswith("Set DISPATCHER['database'] to a PostgreSQL database.")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("block", [nullcontext, transaction.atomic])
def test_a_send_to_a_database_that_takes_no_writes_names_the_remedy(
    block: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        connection.close()
        patch.setitem(connection.settings_dict["OPTIONS"], "options", "-c default_transaction_read_only=on")
        with pytest.raises(DatabaseNotReady, match=r"'default' takes no writes") as raised, block():
            CallQueue.objects.send("noop")
        (found,) = checks.run_checks(tags=["database"], databases=["default"])
        connection.close()
    assert isinstance(raised.value, InternalError)
    assert sql.is_unavailable(raised.value)
    problem, remedy = str(raised.value).splitlines()
    assert problem.endswith("cannot execute INSERT in a read-only transaction")
    assert (found.id, found.hint) == ("dispatcher.E019", remedy)
    assert "primary server" in remedy


class PoolTimeout(psycopg.OperationalError):
    """That of psycopg_pool, which need not be installed."""


@pytest.mark.django_db(transaction=True)
def test_a_pool_that_gives_no_connection_is_named_by_a_send_and_by_a_worker_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def get_new_connection(_: object) -> None:
        raise PoolTimeout("no connection after 30.00 sec")  # noqa: TRY003 -- its words

    connection.close()
    monkeypatch.setattr(connection, "get_new_connection", get_new_connection)
    monkeypatch.setattr(faults, "_reported", {})
    with pytest.raises(DatabaseNotReady, match=r"gave no connection: .*\n.*larger max_size") as raised:
        CallQueue.objects.send("noop")
    assert isinstance(raised.value, OperationalError)
    for _ in range(2):
        heartbeat.in_background("send its heartbeat", sql.now)
    (record,) = [record for record in caplog.records if record.name.startswith("dispatcher")]
    assert "larger max_size" in record.getMessage()
    assert record.exc_info is None


@pytest.mark.django_db(transaction=True)
def test_watching_survives_a_connection_that_is_lost(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    RateLimitKey.objects.declare("api")
    shown: list[str] = []

    def nap(_: float) -> None:
        if not shown:
            pid = connection.connection.info.backend_pid
            monitor().execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
        elif len(shown) > 1:
            raise KeyboardInterrupt
        shown.append("nap")

    monkeypatch.setattr("dispatcher.management.commands.rate_limit_status.time.sleep", nap)
    call_command("rate_limit_status", "--watch", "0.01")
    printed = capfd.readouterr()
    assert printed.out.count("every 0.01 s; Ctrl-C ends it.") == 2
    assert "The database 'default' is unavailable: " in printed.err
    assert "It is queried again every 0.01 s" in printed.err


@pytest.mark.django_db(transaction=True)
def test_a_worker_names_missing_migrations_seldom_and_without_a_traceback(caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(faults, "_reported", {})
    now = 1_000.0
    monkeypatch.setattr(faults, "monotonic", lambda: now)

    def work() -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 FROM dispatcher_not_migrated")

    for _ in range(3):
        heartbeat.in_background("send its heartbeat", work)
        assert not heartbeat.try_to("look after the periodic tasks", work)
    (record,) = [record for record in caplog.records if record.name.startswith("dispatcher")]
    assert record.getMessage().splitlines()[1] == "Run: python manage.py migrate"
    assert record.exc_info is None
    now += 600
    heartbeat.in_background("send its heartbeat", work)
    heartbeat.in_background("send its heartbeat", work)
    assert len([each for each in caplog.records if each.getMessage() == record.getMessage()]) == 2
