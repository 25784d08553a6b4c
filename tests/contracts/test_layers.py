"""The layers hold, and the migrations are those of the models."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.test import override_settings

from dispatcher.sql import functions
from tests.contracts.source import ROOT


def test_imports_point_down() -> None:
    lint = Path(sys.executable).with_name("lint-imports")
    found = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout
    kept = re.search(r"Contracts: (\d+) kept, 0 broken", found.stdout)
    assert kept is not None, found.stdout
    assert int(kept[1]) >= 4


def test_every_module_has_its_layer() -> None:
    settings = (ROOT / "pyproject.toml").read_text()
    assert "exhaustive = true" in settings
    layers = settings.split("layers = [")[1].split("\n]")[0]
    modules = {path.stem for path in (ROOT / "dispatcher").glob("*.py")} - {"__init__"}
    assert modules - set(re.findall(r"\w+", layers)) == set()


def test_setting_up_django_does_not_import_a_workers_consumer() -> None:
    """An SDK that traces tasks patches what the consumer imports, and may be set up after Django."""
    ask = "import django, sys; django.setup(); print('celery.worker.consumer' in sys.modules)"
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings"}
    found = subprocess.run([sys.executable, "-c", ask], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


@pytest.mark.django_db
def test_the_migrations_are_those_of_the_models() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db
def test_a_table_that_a_migration_makes_by_a_statement_has_the_columns_of_its_model() -> None:
    with connection.cursor() as cursor:
        for model in (model for model in apps.get_models() if not model._meta.managed):
            table = connection.introspection.get_table_description(cursor, model._meta.db_table)
            columns = {(column.name, column.null_ok) for column in table}
            assert columns == {(field.column, field.null) for field in model._meta.concrete_fields}, model


@pytest.mark.django_db
def test_a_table_that_changes_with_every_call_has_no_unique_index() -> None:
    """While an old snapshot is held, it would make each update read all former versions of the row."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename, indexname FROM pg_indexes WHERE indexdef LIKE 'CREATE UNIQUE%'")
        unique = dict(cursor.fetchall())
    assert not {"dispatcher_lanesite", "dispatcher_start", "dispatcher_note"} & set(unique)
    assert "dispatcher_lane" in unique


@pytest.mark.django_db
def test_every_migration_can_be_taken_back() -> None:
    loader = MigrationLoader(connection)
    ours = [migration for (app, _), migration in loader.disk_migrations.items() if app.startswith("dispatcher")]
    assert ours
    assert all(operation.reversible for migration in ours for operation in migration.operations)


@pytest.mark.django_db
def test_the_hot_tables_have_room_for_updates_and_an_autovacuum_that_keeps_up() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, reloptions::text FROM pg_class WHERE relname LIKE 'dispatcher%' AND relkind = 'r'"
        )
        options = dict(cursor.fetchall())
    for table in ("lanesite", "slot", "callqueue"):
        stored = options[f"dispatcher_{table}"] or ""
        assert re.search(r"fillfactor=[2-8]\d\b", stored), table
        assert "autovacuum_vacuum_scale_factor" in stored, table


@pytest.mark.django_db
def test_no_vacuum_locks_a_trip_out_of_a_table_to_give_its_end_back() -> None:
    """A trip waits 20 ms for a lock at the most."""
    texts = [file.read_text() for file in functions.FOLDER.glob("*.sql")]
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT main.relname, main.reloptions::text, long.reloptions::text FROM pg_class AS main "
            "LEFT JOIN pg_class AS long ON long.oid = main.reltoastrelid "
            "WHERE main.relname = ANY (%s) AND main.relkind = 'r'",
            [sorted({name for text in texts for name in re.findall(r"dispatcher_\w+", text)})],
        )
        tables = cursor.fetchall()
    assert len(tables) > 10
    assert [name for name, stored, _ in tables if "vacuum_truncate=false" not in (stored or "")] == []
    long = {"dispatcher_callqueue", "dispatcher_worker", "dispatcher_eventlogentry"}
    assert {name for name, _, stored in tables if "vacuum_truncate=false" in (stored or "")} == long


@pytest.mark.django_db
def test_what_changes_often_is_in_no_index() -> None:
    """An update of an indexed column is never heap-only."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT tablename, indexdef FROM pg_indexes WHERE tablename LIKE 'dispatcher%'")
        indexes = cursor.fetchall()
    hot = {
        "dispatcher_slot": ["lease_until", "started_at"],
        "dispatcher_callqueue": ["ticket", "attempt", "started_at", "published_at"],
        "dispatcher_start": ["cost", "last_cost"],
    }
    for table, columns in hot.items():
        for column in columns:
            assert not [text for name, text in indexes if name == table and re.search(rf"\b{column}\b", text)], column


def test_all_rows_are_read_from_the_database_that_the_setting_names() -> None:
    models = [model for model in apps.get_models() if model._meta.app_label in {"dispatcher", "dispatcher_ojs"}]
    with override_settings(DISPATCHER={"database": "calls"}):
        read = {model.__name__: model._default_manager.all().db for model in models}  # noqa: SLF001 -- whatever its name
    assert set(read.values()) == {"calls"}, read
    named = [path for path in (ROOT / "dispatcher").rglob("*.py") if "objects.using(conf()" in path.read_text()]
    assert not named, "the manager knows the database"
