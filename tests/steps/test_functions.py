"""Functions of the database: installed once, beside those of other versions, and called by a role that may."""

import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.core import checks
from django.core.management import call_command
from django.db import DatabaseError, ProgrammingError, connection, transaction

from dispatcher import api, engine, errors, sql
from dispatcher.ending import completed
from dispatcher.engine import direct
from dispatcher.lifecycle import heartbeat
from dispatcher.lifecycle.run import Returned
from dispatcher.migrations import _functions
from dispatcher.migrations._functions import DropFunctions, InstallFunctions
from dispatcher.models import CallQueue
from dispatcher.sql import faults, functions
from dispatcher.sql.statements import Statement
from tests.builders import HERE, committed, key, seen, states, ticket_of
from tests.clock import T0, stopped_clock
from tests.contracts.source import ROOT
from tests.releases import run
from tests.steps.feeding import TAKER, take

pytestmark = [pytest.mark.server, pytest.mark.django]

HEAD = "LANGUAGE plpgsql SET search_path FROM CURRENT AS $$"
PAIR = "CREATE TYPE @pair AS (number int, at timestamptz);\n"
READ = f"CREATE FUNCTION @read() RETURNS @pair {HEAD} BEGIN RETURN (%s, clock_timestamp())::@pair; END $$;\n"


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], str]:
    """Return what writes the copy of a release whose function returns this number; it returns the version."""
    monkeypatch.setattr(_functions, "FOLDER", tmp_path)

    def write(number: int) -> str:
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "read.sql").write_text(PAIR + READ % number)
        version = functions.version(folder)
        _functions.copy_of(version).write_text(functions.ddl(folder))
        return version

    return write


def value(text: str, *values: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(text, values or None)
        row = cursor.fetchone()
        return row and row[0]


def read(version: str) -> Any:
    return value(f"SELECT (dispatcher_read_{version}()).number")


def stored(version: str, column: str) -> Any:
    """Return what the catalog has of the function of a version; None where it is not there."""
    text = "SELECT to_jsonb(proc) -> %s FROM pg_proc AS proc WHERE proname = %s"
    return value(text, column, f"dispatcher_read_{version}")


def is_there(version: str) -> bool:
    made = stored(version, "oid")
    assert (made is None) == (value("SELECT to_regtype(%s)", f"dispatcher_pair_{version}") is None)
    return made is not None


@contextmanager
def acting_as(role: str) -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(f"SET ROLE {role}")
        try:
            with transaction.atomic():
                yield
        finally:
            cursor.execute("RESET ROLE")


@pytest.fixture
def worker() -> str:
    """Make a role that may use the tables, and owns none."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE worker_of_a_test")
        cursor.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO worker_of_a_test")
    return "worker_of_a_test"


@pytest.mark.django_db
def test_two_versions_are_there_at_once_and_each_is_dropped_alone(release: Callable[[int], str]) -> None:
    old, new = release(1), release(2)
    run(InstallFunctions(old))
    run(InstallFunctions(new))
    assert (read(old), read(new)) == (1, 2)
    run(DropFunctions(old))
    assert (is_there(old), read(new)) == (False, 2)


@pytest.mark.django_db
def test_both_operations_can_be_reversed(release: Callable[[int], str]) -> None:
    version = release(1)
    run(InstallFunctions(version))
    run(DropFunctions(version))
    run(DropFunctions(version), backwards=True)
    assert read(version) == 1
    run(InstallFunctions(version), backwards=True)
    assert not is_there(version)


@pytest.mark.django_db
def test_what_is_installed_already_is_kept_and_what_is_missing_is_added(release: Callable[[int], str]) -> None:
    version = release(1)
    run(InstallFunctions(version))
    made = stored(version, "oid")
    run(InstallFunctions(version))
    assert stored(version, "oid") == made
    with connection.cursor() as cursor:
        cursor.execute(f"DROP FUNCTION dispatcher_read_{version}")
    run(InstallFunctions(version))
    assert read(version) == 1
    run(DropFunctions(version))
    run(DropFunctions(version))
    assert not is_there(version)


@pytest.mark.django_db
def test_a_migration_can_be_read_before_it_is_run(release: Callable[[int], str]) -> None:
    version = release(1)
    with connection.schema_editor(collect_sql=True) as editor:
        InstallFunctions(version).database_forwards("dispatcher", editor, None, None)
    assert f"CREATE FUNCTION dispatcher_read_{version}()" in "\n".join(editor.collected_sql)
    assert not is_there(version)


@pytest.mark.django_db
def test_a_database_that_is_not_the_dispatchers_gets_no_functions(
    release: Callable[[int], str], settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = release(1)
    monkeypatch.setattr(_functions.router, "allow_migrate", lambda alias, label: False)
    run(InstallFunctions(version))
    assert not is_there(version)


@pytest.mark.django_db
def test_a_function_sees_the_clock_that_a_test_stops(release: Callable[[int], str]) -> None:
    version = release(1)
    run(InstallFunctions(version))
    now = f"SELECT (dispatcher_read_{version}()).at"
    assert isinstance(before := value(now), datetime)
    with stopped_clock() as clock:
        assert value(now) == T0
        clock.forward(5)
        assert value(now) == clock.now
    assert value(now) >= before


@pytest.mark.django_db
def test_a_function_finds_what_its_owner_finds_and_leaves_the_search_path_alone(release: Callable[[int], str]) -> None:
    version, path = release(1), value("SHOW search_path")
    run(InstallFunctions(version))
    kept = path.replace('"$user"', value("SELECT quote_ident(current_user)"))
    assert f"search_path={kept}" in stored(version, "proconfig")
    assert value("SHOW search_path") == path


@pytest.mark.django_db
def test_a_role_that_was_granted_nothing_may_not_execute_a_function(release: Callable[[int], str], worker: str) -> None:
    version = release(1)
    run(InstallFunctions(version))
    refused = f"permission denied for function dispatcher_read_{version}"
    with pytest.raises(ProgrammingError, match=refused), acting_as(worker):
        read(version)
    with connection.cursor() as cursor:
        cursor.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {worker}")
    with acting_as(worker):
        assert read(version) == 1


@pytest.mark.django_db
def test_default_privileges_let_a_role_execute_what_later_releases_install(
    release: Callable[[int], str], worker: str
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT EXECUTE ON FUNCTIONS TO {worker}")
    version = release(1)
    run(InstallFunctions(version))
    assert not re.search("[{,]=", stored(version, "proacl")), "nothing is granted to PUBLIC"
    with acting_as(worker):
        assert read(version) == 1


@pytest.fixture
def role() -> Iterator[str]:
    """Make a role as the page of deployments has it, which owns nothing; act as it until the end of the test."""
    page = (ROOT / "docs" / "how-to" / "docker-compose.md").read_text()
    (grants,) = re.findall(r"```sql\n(ALTER DEFAULT PRIVILEGES .*?)```", page, re.DOTALL)
    name = f"worker_{uuid4().hex}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {name}; {re.sub('TO worker;', f'TO {name};', grants)} SET ROLE {name}")
    yield name
    with connection.cursor() as cursor:
        cursor.execute(f"RESET ROLE; DROP OWNED BY {name}; DROP ROLE {name}")


@committed
@pytest.mark.session
@pytest.mark.usefixtures("direct")
def test_a_role_with_the_documented_grants_can_do_all_that_the_engine_does(role: str) -> None:
    key("api", concurrency=1, rate=(9, 60), throttle=(1_000, 1), per_worker=1)
    key("relay", concurrency=1, rate=(9, 60), throttle=(1_000, 1))
    first, second = (CallQueue.objects.send("noop", queue="mail", keys=["api"]) for _ in range(2))
    published, behind = (seen(CallQueue.objects.send("noop", keys=["relay"])) for _ in range(2))
    (start,) = take().starts
    assert start.call.id == first.id
    assert engine.execute(published.id, ticket_of(published), lambda: "done") == Returned(result="done")
    taken = direct.step(TAKER, [start.ended(completed("done"))], room=1)
    assert [each.call.id for each in taken.starts] == [second.id]
    assert states([first, second, published, behind]) == ["completed", "active", "completed", "dispatched"]
    for work in (engine.tick, engine.recover, engine.sweep, engine.cleanup):
        work()
    heartbeat.record(HERE, [])
    api.limit("api", {"concurrency": 2})
    api.pause("api")
    call_command("rate_limit_status", stdout=io.StringIO())
    call_command("dispatcher_audit", stdout=io.StringIO())
    assert found() == []
    assert value("SELECT current_user") == role


# Code of another version than the database


def call_missing(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let every statement call a function of this version that is not there; return its name."""
    name, known = f"dispatcher_missing_{functions.version()}", sql.statement
    missing = Statement(text=f"SELECT {name}()", parameters=())
    monkeypatch.setattr(sql, "statement", lambda each: missing if each == "read_clock" else known(each))
    return name


@pytest.mark.django_db
def test_code_whose_role_may_not_execute_them_says_what_to_grant(worker: str) -> None:
    with pytest.raises(errors.DatabaseNotReady, match="GRANT EXECUTE ON ALL FUNCTIONS") as raised, acting_as(worker):
        take()
    assert (sql.is_unavailable(raised.value), faults.report(raised.value)) == (True, True)


@committed
def test_code_whose_functions_are_not_installed_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    name = call_missing(monkeypatch)

    def in_a_pipeline() -> None:
        with sql.together():
            asked = sql.ask("read_clock", datetime, {})
        asked.rows()

    def in_a_transaction() -> None:
        with sql.own_transaction():
            sql.fetch("read_clock", datetime, {})

    for attempt in (sql.now, in_a_pipeline, in_a_transaction):
        with pytest.raises(errors.DatabaseNotReady, match=rf"{name}.*\nRun: python manage\.py migrate$") as raised:
            attempt()
        assert isinstance(raised.value, DatabaseError)
        assert sql.is_unavailable(raised.value), "what the caller holds is kept, and tried again"
        assert not sql.is_refused(raised.value)
        assert "manage.py migrate" in str(faults.in_words(raised.value))
    monkeypatch.undo()
    assert sql.now().tzinfo is not None


@pytest.mark.django_db
def test_a_function_of_others_that_is_missing_is_an_error_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "statement", lambda _: Statement(text="SELECT nothing()", parameters=()))
    with pytest.raises(ProgrammingError, match="nothing") as raised, transaction.atomic():
        sql.now()
    assert not isinstance(raised.value, errors.DatabaseNotReady)
    assert sql.is_refused(raised.value)


def found() -> list[checks.CheckMessage]:
    messages = checks.run_checks(tags=["database"], databases=["default"])
    return [message for message in messages if message.id == "dispatcher.W017"]


@pytest.mark.django_db
def test_the_check_of_a_database_names_the_functions_that_are_missing() -> None:
    assert found() == []
    version = functions.version()
    run(DropFunctions(version))
    (message,) = found()
    for name in functions.installed_names():
        assert name in message.msg
    assert message.hint == "Run manage.py migrate --database default."
    run(InstallFunctions(version))
    assert found() == []


@pytest.mark.django_db
def test_the_check_of_a_database_names_the_functions_that_its_role_may_not_execute(worker: str) -> None:
    with acting_as(worker):
        (message,) = found()
    assert "may not execute" in message.msg
    assert "GRANT EXECUTE" in str(message.hint)
