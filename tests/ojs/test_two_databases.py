"""DISPATCHER["database"] names another database than the default: all that works with one database works with two."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from project.services import Services

pytestmark = [pytest.mark.django, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("two_default", "two_calls")
BEAT = ["dispatcher.cleanup", "dispatcher.recover", "dispatcher.tick"]


@pytest.fixture(scope="module")
def environment(services: Services) -> Iterator[dict[str, str]]:
    """Make two databases and migrate both; return the environment of processes that use them."""
    with psycopg.connect(services.database_url, dbname="postgres", autocommit=True) as connection:
        for name in NAMES:
            connection.execute(f"DROP DATABASE IF EXISTS {name}")
            connection.execute(f"CREATE DATABASE {name}")
        made = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "tests.ojs.two_databases.settings",
            "PYTHONPATH": str(ROOT),
            "DATABASE_URL": url_of(services.database_url, NAMES[0]),
            "CALLS_DATABASE_URL": url_of(services.database_url, NAMES[1]),
            "CELERY_BROKER_URL": "memory://",
        }
        for alias in ("default", "calls"):
            manage(made, "migrate", "--database", alias, "--verbosity", "0", "--skip-checks")
        yield made
        for name in NAMES:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def url_of(url: str, name: str) -> str:
    """Return the URL of another database at the same server."""
    before, _, after = url.partition("?")
    return f"{before.rpartition('/')[0]}/{name}" + (f"?{after}" if after else "")


def manage(environment: dict[str, str], *words: str, code: int = 0) -> str:
    """Run a management command; return what it printed, errors included."""
    return ran(environment, str(ROOT / "manage.py"), *words, code=code)


def ran(environment: dict[str, str], *command: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def facts(environment: dict[str, str]) -> dict[str, Any]:
    """Return what came of a little of everything."""
    reply: dict[str, Any] = json.loads(ran(environment, "tests/ojs/two_databases/program.py"))
    return reply


EXPECTED: dict[str, Any] = {
    "keys": ["api"],
    # Beat finds its entries in the database of its own models.
    "beat": {"default": BEAT, "calls": []},
    "sent": {"states": ["cancelled", "dispatched", "dispatched"], "recovered": 0, "cleaned": 0},
    "fired": {"is_new": True, "is_sent": True, "is_enabled": False, "left": 0},
    "pushed": {"pushed": 201, "listed": 200, "crons": 200},
}


@pytest.mark.parametrize("what", EXPECTED)
def test_all_is_done_in_the_database_of_the_calls(facts: dict[str, Any], what: str) -> None:
    assert facts[what] == EXPECTED[what]


def test_tables_are_made_in_the_database_of_the_calls_alone_and_the_admin_shows_and_writes_them(
    facts: dict[str, Any],
) -> None:
    assert facts["tables"]["default"] == 0
    assert facts["tables"]["calls"] > 10
    visited = facts["visited"]
    assert set(visited["pages"].values()) == {200}
    assert visited["is_found"]
    assert (visited["key"], visited["is_paused"]) == ([3], True)
    assert visited["queue_made_and_deleted"] == [True, True]


def test_the_commands_work(environment: dict[str, str], facts: dict[str, Any]) -> None:
    assert facts
    shown = manage(environment, "rate_limit_status", "--json")
    assert json.loads(shown)["items"]
    assert all(f'"{name}"' in shown for name in ("api", "tenant:acme", "made:by:hand"))
    assert json.loads(manage(environment, "dispatcher_audit", "--json"))["ok"]
    manage(environment, "dispatcher_token", "ci", "send")
    for alias in ("default", "calls"):
        manage(environment, "check", "--fail-level", "WARNING", "--database", alias)


def test_a_check_says_that_the_router_is_missing(environment: dict[str, str]) -> None:
    said = manage({**environment, "ROUTERS": "none"}, "check", code=1)
    assert "dispatcher.E014" in said
    assert "dispatcher.routers.DispatcherRouter" in said
