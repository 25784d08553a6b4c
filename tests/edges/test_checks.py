"""System checks: each id is there when something is wrong, and silent when it is right."""

from dataclasses import fields
from datetime import timedelta
from typing import Any
from unittest.mock import Mock, patch

import pytest
from celery import Celery
from django.apps import apps
from django.core import checks
from django.core.management import call_command
from django.db import connection, connections
from psycopg import IsolationLevel

from dispatcher.conf import Conf
from project.celery import app as project_app

GOOD: dict[str, Any] = {
    "keys": {"api": {"concurrency": 4}, "tenant:*": {"rate": {"limit": 10, "period": "PT1M"}}, "free": {}},
    "retry": {"max_attempts": 5, "initial_interval": "PT1S"},
    "retention": {"completed": timedelta(days=1), "discarded": None},
    "heartbeat": 10,
    "run_lease": 20,
    "horizon": 0.1,
    "min_pause": 0.05,
}


def found(*, databases: list[str] | None = None) -> list[checks.CheckMessage]:
    """Run the dispatcher's checks, as `manage.py check` does."""
    return checks.run_checks(tags=["dispatcher"], databases=databases)


def ids() -> list[str]:
    return [str(message.id) for message in found()]


def texts() -> str:
    return "\n".join(message.msg for message in found())


def test_all_is_right_in_the_project() -> None:
    assert found() == []
    call_command("check", fail_level="WARNING")


def test_all_is_right_with_good_settings(settings: Any) -> None:
    settings.DISPATCHER = GOOD
    assert found() == []
    settings.DISPATCHER = {}
    assert found() == []


# The setting can't be read: E001


@pytest.mark.parametrize(
    "wrong", [{"batches": 1}, {"tick": "1s"}, {"batch": "many"}, {"keys": ["api"]}, ["batch"]], ids=str
)
def test_a_setting_that_is_unknown_or_of_the_wrong_type_is_e001(wrong: Any, settings: Any) -> None:
    settings.DISPATCHER = wrong
    assert ids() == ["dispatcher.E001"]
    assert "DISPATCHER" in texts()


# Ranges and rules: E002


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch": 0}, "DISPATCHER['batch'] is 0: give a whole number from 1"),
        ({"lanes_per_pass": -1}, "DISPATCHER['lanes_per_pass'] is -1"),
        ({"max_payload_bytes": 0}, "DISPATCHER['max_payload_bytes'] is 0"),
        ({"margin": -1}, "DISPATCHER['margin'] must not be negative"),
        ({"publish_pause": timedelta(seconds=-1)}, "DISPATCHER['publish_pause'] must not be negative"),
        ({"tick": 0}, "DISPATCHER['tick'] must be longer than 0"),
        ({"heartbeat": 31}, "at least twice DISPATCHER['heartbeat']"),
        ({"run_lease": 29}, "at least twice DISPATCHER['heartbeat']"),
        ({"horizon": 0.04}, "at least twice DISPATCHER['min_pause']"),
        ({"retention": {"active": None}}, "DISPATCHER['retention']['active'] is not an ended state"),
        ({"retention": {"completed": 7}}, "DISPATCHER['retention']['completed'] is 7: give a timedelta"),
        ({"retention": {"completed": timedelta(-1)}}, "DISPATCHER['retention']['completed']"),
        ({"database": "other"}, "DISPATCHER['database'] is 'other', which is not in DATABASES"),
    ],
    ids=str,
)
def test_a_setting_out_of_range_is_e002(wrong: Any, words: str, settings: Any) -> None:
    settings.DISPATCHER = wrong
    assert set(ids()) == {"dispatcher.E002"}
    assert words in texts()


def test_all_that_is_out_of_range_is_reported_together(settings: Any) -> None:
    settings.DISPATCHER = {"batch": 0, "lanes_per_pass": 0, "margin": -1, "tick": 0, "retention": {"active": 1}}
    assert ids().count("dispatcher.E002") == 6


def test_every_duration_is_checked_for_being_negative(settings: Any) -> None:
    for field in fields(Conf):
        if field.type is timedelta:
            settings.DISPATCHER = {field.name: -1}
            assert f"DISPATCHER[{field.name!r}] must not be negative" in texts()


# Policies, which are E003 and E004


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"api": {"concurrency": -1}}, "DISPATCHER['keys']['api'].concurrency: -1"),
        ({"api": {"rate": {"limit": 1, "period": "P1M"}}}, "DISPATCHER['keys']['api'].rate.period: 'P1M'"),
        ({"api": {"speed": 1}}, "DISPATCHER['keys']['api'].speed: unknown"),
        ({"tenant:*": {"throttle": 5}}, "DISPATCHER['keys']['tenant:*'].throttle: 5 is not a rate"),
        ({"api": None}, "DISPATCHER['keys']['api']: None is not a policy"),
        ({"a b": {}}, "'a b' is not a key name"),
        ({5: {}}, "5 is not a key name"),
    ],
    ids=str,
)
def test_a_policy_that_is_wrong_is_e003(wrong: Any, words: str, settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"good": {}, **wrong}}
    assert ids() == ["dispatcher.E003"]
    assert words in texts()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_attempts": 0}, "DISPATCHER['retry'].max_attempts: 0"),
        ({"tries": 1}, "DISPATCHER['retry'].tries: unknown"),
        ({"max_interval": "soon"}, "DISPATCHER['retry'].max_interval"),
    ],
    ids=str,
)
def test_a_retry_policy_that_is_wrong_is_e004(wrong: Any, words: str, settings: Any) -> None:
    settings.DISPATCHER = {"retry": wrong}
    assert ids() == ["dispatcher.E004"]
    assert words in texts()


def test_policies_that_are_wrong_are_reported_together(settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"a": {"rate": 1}, "b": {"rate": 1}}, "retry": {"tries": 1}, "batch": 0}
    assert sorted(ids()) == ["dispatcher.E002", "dispatcher.E003", "dispatcher.E003", "dispatcher.E004"]


# The Celery app (E005 and E006)


@pytest.fixture
def plain_app() -> Any:
    """Be another Celery app, whose tasks are Celery's own."""
    made = Celery("plain")
    made.conf.accept_content = ["json"]
    made.set_current()
    yield made
    project_app.set_current()


def test_an_app_whose_tasks_do_not_claim_is_e005(plain_app: Celery) -> None:
    assert ids() == ["dispatcher.E005"]
    (message,) = found()
    assert "'plain'" in message.msg
    assert 'task_cls="dispatcher.celery:DispatchedTask"' in (message.hint or "")


@pytest.mark.parametrize("name", ["pickle", "application/x-python-serialize"])
def test_an_app_that_accepts_pickle_is_e006(name: str) -> None:
    made = Celery("open", task_cls="dispatcher.celery:DispatchedTask")
    made.conf.accept_content = ["json", name]
    made.set_current()
    try:
        assert ids() == ["dispatcher.E006"]
    finally:
        project_app.set_current()


# What it is installed on: E007, E008, E009 and W001


def test_a_database_that_is_not_postgresql_is_e007(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "vendor", "sqlite")
    assert ids() == ["dispatcher.E007"]
    assert "is sqlite; the dispatcher needs PostgreSQL 14" in texts()


@pytest.mark.django_db
def test_a_server_that_is_too_old_is_e008_where_the_database_is_checked() -> None:
    assert found(databases=["default"]) == []
    old = Mock(info=Mock(server_version=130_011))
    with patch.object(connections["default"], "connection", old):
        assert found() == []
        (message,) = found(databases=["default"])
    assert (message.id, message.msg) == ("dispatcher.E008", "PostgreSQL is version 130011.")


def test_no_connection_is_made_by_a_plain_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(connections["default"], "ensure_connection", fail)
    assert found() == []


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE", "READ_COMMITTED"])
def test_an_isolation_level_that_hides_what_was_waited_for_is_e009(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", IsolationLevel[level])
    assert ids() == ([] if level == "READ_COMMITTED" else ["dispatcher.E009"])


def test_a_project_without_beat_is_warned_by_w001(monkeypatch: pytest.MonkeyPatch) -> None:
    is_installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda name: name != "django_celery_beat" and is_installed(name))
    (message,) = found()
    assert (message.id, message.level) == ("dispatcher.W001", checks.WARNING)
    assert "dispatcher.tick every second" in (message.hint or "")
