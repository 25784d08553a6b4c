"""System checks: each id is there when something is wrong, and silent when it is right."""

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any
from unittest.mock import Mock, patch

import pytest
from celery import Celery, Task, current_app
from django.core import checks
from django.core.management import call_command
from django.db import connection, connections
from kombu import transport
from psycopg import IsolationLevel

from dispatcher.conf import settable
from project.celery import app as project_app

pytestmark = pytest.mark.django

GOOD: dict[str, Any] = {
    "keys": {"api": {"concurrency": 4}, "tenant:*": {"rate": {"limit": 10, "period": "PT1M"}}, "free": {}},
    "retry": {"max_attempts": 5, "initial_interval": "PT1S"},
    "retention": {"completed": timedelta(days=1), "discarded": None},
    "heartbeat": 10,
    "run_lease": 20,
}


@pytest.fixture(autouse=True)
def _without_the_broker_of_the_tests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out that the tests let a broker in memory deliver."""
    if "broker" not in request.fixturenames:
        monkeypatch.setattr("dispatcher.checks.network._broker", lambda: ("", ""))


def found(*, databases: list[str] | None = None) -> list[checks.CheckMessage]:
    """Run the dispatcher's checks, as `manage.py check` does; with databases, as `check --database` does."""
    tags = ["dispatcher", "database"] if databases else ["dispatcher"]
    messages = checks.run_checks(tags=tags, databases=databases)
    return [message for message in messages if str(message.id).startswith("dispatcher.")]


def ids() -> list[str]:
    return [str(message.id) for message in found()]


def texts() -> str:
    return "\n".join(message.msg for message in found())


def test_all_is_right_in_the_project_and_with_good_settings(settings: Any) -> None:
    assert found() == []
    call_command("check", fail_level="WARNING")
    for good in (GOOD, {}):
        settings.DISPATCHER = good
        assert found() == []


# Settings: those that can't be read (E001), are out of range (E002), and policies of keys (E003) and of retries (E004),
# and shares (W018)


WRONG: list[tuple[str, Any, str]] = [
    ("E001", {"batches": 1}, "DISPATCHER['batches']"),
    ("E001", {"tick": "1s"}, "DISPATCHER['tick']"),
    ("E001", ["batch"], "DISPATCHER"),
    ("E001", [], "DISPATCHER"),
    ("E002", {"batch": 0}, "DISPATCHER['batch'] is 0: give a whole number from 1"),
    ("E002", {"poison_after": 32_768}, "DISPATCHER['poison_after'] is 32768: give a whole number from 1 to 32767"),
    ("E002", {"max_payload_bytes": 0}, "DISPATCHER['max_payload_bytes'] is 0"),
    ("E002", {"publish_after": timedelta(seconds=-1)}, "DISPATCHER['publish_after'] must not be negative"),
    (
        "E002",
        {"delivery": {"mail": "post"}},
        "DISPATCHER['delivery']['mail'] is 'post': give one of broker, direct, http",
    ),
    ("E002", {"tick": 0}, "DISPATCHER['tick'] must be longer than 0"),
    ("E002", {"heartbeat": 31}, "at least twice DISPATCHER['heartbeat']"),
    ("E002", {"retention": {"active": None}}, "DISPATCHER['retention']['active'] is not an ended state"),
    (
        "E002",
        {"retention": {"completed": "7 days"}},
        "DISPATCHER['retention']['completed'] is '7 days': give a timedelta or",
    ),
    ("E002", {"retention": {"completed": timedelta(-1)}}, "DISPATCHER['retention']['completed']"),
    ("E002", {"database": "other"}, "DISPATCHER['database'] is 'other', which is not in DATABASES"),
    ("E003", {"keys": {"api": {"rate": (1, "P1M")}}}, "DISPATCHER['keys']['api'].rate.period: 'P1M'"),
    ("E003", {"keys": {"tenant:*": {"throttle": 5}}}, "DISPATCHER['keys']['tenant:*'].throttle: 5 is not a rate"),
    ("E003", {"keys": {"api": None}}, "DISPATCHER['keys']['api']: None is not a policy"),
    ("E003", {"keys": {"a b": {}}}, "'a b' is not a key name"),
    ("E003", {"keys": {5: {}}}, "5 is not a key name"),
    ("E004", {"retry": {"max_attempts": 0}}, "DISPATCHER['retry'].max_attempts: 0"),
]


@pytest.mark.parametrize(("number", "wrong", "words"), WRONG, ids=str)
def test_a_setting_that_is_wrong_is_named(number: str, wrong: Any, words: str, settings: Any) -> None:
    settings.DISPATCHER = wrong
    assert ids() == [f"dispatcher.{number}"]
    assert words in texts()


def test_templates_that_could_both_be_the_share_of_a_call_are_w018(settings: Any) -> None:
    keys = {"api": {"fair_by": "tenant:*"}, "tenant:*": {}, "topic:*": {}}
    settings.DISPATCHER = {"keys": keys}
    assert found() == []
    settings.DISPATCHER = {"keys": {**keys, "tenant:gold:*": {"weight": 3}}}
    assert ids() == ["dispatcher.W018"]
    assert "DISPATCHER['keys']['api'].fair_by: 'tenant:*' has the keys of tenant:*, tenant:gold:*" in texts()


def test_all_that_is_wrong_is_reported_together_whatever_its_kind(settings: Any) -> None:
    settings.DISPATCHER = {
        "tick": "1s",
        "batches": 1,
        "batch": 0,
        "ramp": -1,
        "retention": {"active": "1"},
        "keys": {"a": {"rate": 1}, "b": {"rate": 1}},
        "retry": {"tries": 1},
    }
    assert sorted(ids()) == [f"dispatcher.E00{number}" for number in (1, 1, 2, 2, 2, 2, 3, 3, 4)]


def test_every_duration_is_checked_for_being_negative(settings: Any) -> None:
    for name, kind in settable().items():
        if kind is timedelta:
            settings.DISPATCHER = {name: -1}
            assert f"DISPATCHER[{name!r}] must not be negative" in texts()


@pytest.mark.parametrize(("queue", "named"), [("mail", "mail"), ("mail", "*"), ("mail*", "mail*"), ("*", "*")])
def test_a_limit_per_worker_of_a_queue_that_the_broker_delivers_is_e003(queue: str, named: str, settings: Any) -> None:
    settings.DISPATCHER = {"keys": {f"queue:{queue}": {"per_worker": 2}}, "delivery": {named: "broker"}}
    assert ids() == ["dispatcher.E003"]
    assert f"DISPATCHER['keys']['queue:{queue}'].per_worker: DISPATCHER['delivery'] gives the queue" in texts()
    assert "limit the key by concurrency" in texts()
    settings.DISPATCHER = settings.DISPATCHER | {"delivery": {named: "post"}}
    assert ids() == ["dispatcher.E002"]
    settings.DISPATCHER = settings.DISPATCHER | {"delivery": {named: "broker", queue: "direct"}}
    assert ids() == []


# The models are looked for elsewhere: E014


class Elsewhere:
    """A router of a project that sends the dispatcher's models to another database."""

    def db_for_write(self, model: Any, **_: Any) -> str | None:
        return "other" if model._meta.app_label == "dispatcher" else None


def test_a_router_that_sends_the_models_elsewhere_is_e014(settings: Any) -> None:
    settings.DATABASE_ROUTERS = [Elsewhere()]
    assert ids() == ["dispatcher.E014"]
    assert "'other'" in texts()
    settings.DATABASE_ROUTERS = ["dispatcher.routers.DispatcherRouter", Elsewhere()]
    assert ids() == []


# The Celery app (E005 and E006)


@pytest.fixture
def become() -> Iterator[Callable[..., Celery]]:
    """Return what makes another Celery app the current one, with these settings."""

    def become(task_cls: str = "dispatcher.celery:DispatchedTask", **configured: Any) -> Celery:
        made = Celery("other", task_cls=task_cls)
        made.conf.update(**{"accept_content": ["json"], "broker_write_url": "memory://", **configured})
        made.set_current()
        return made

    yield become
    project_app.set_current()


def nothing() -> None:
    """Do nothing: a task."""


def test_an_app_whose_tasks_are_celerys_own_is_all_right(become: Callable[..., Celery]) -> None:
    become("celery:Task").task(name="tests.plain", base=Task, shared=False)(nothing)
    assert ids() == []


def test_a_task_with_a_rate_limit_of_celerys_own_is_w019(become: Callable[..., Celery]) -> None:
    become("celery:Task").task(name="tests.limited", rate_limit="10/m", shared=False)(nothing)
    (message,) = found()
    assert (message.id, message.level) == ("dispatcher.W019", checks.WARNING)
    assert "that of tests.limited." in message.msg


def test_a_rate_limit_that_is_global_is_right(become: Callable[..., Celery], settings: Any) -> None:
    settings.DISPATCHER = {"celery_rate_limits": "global"}
    become("celery:Task").task(name="tests.limited", rate_limit="10/m", shared=False)(nothing)
    assert found() == []


@pytest.mark.parametrize(
    ("tasks", "wanted"),
    [
        ({"tests.charge": ["api", "tenant:{user}"], "tests.*": {"api": 2}, "*": []}, []),
        ({"tests.charge": None}, []),
        ([lambda *_, **__: None, {"tests.charge": lambda user: [user]}], []),
        ({"tests.chrage": ["api"]}, [("W021", "['tests.chrage']: no task has this name")]),
        ({"other.*": ["api"]}, [("W021", "['other.*']")]),
        ({"tests.charge": ["apl"]}, [("W022", "no setting declares the key 'apl'")]),
        ({"tests.charge": ["shop:{user}"]}, [("W022", "'shop:{user}'")]),
        ({"tests.charge": ["tenant:{usr}"]}, [("E022", "names 'usr', which tests.charge does not take")]),
        ({"tests.charge": ["tenant:{user"]}, [("E021", "'tenant:{user' is not a key")]),
        ({"tests.charge": ["a b"]}, [("E021", "'a b' is not a key")]),
        ({"tests.charge": "api"}, [("E021", "['tests.charge'] is 'api'")]),
        (["api"], [("E021", "[0] is 'api'")]),
        ("api", [("E001", "DISPATCHER['tasks'] is 'api': give a dict or a list")]),
    ],
)
def test_a_typo_in_the_limits_of_tasks_is_found(
    become: Callable[..., Celery], settings: Any, tasks: Any, wanted: list[tuple[str, str]]
) -> None:
    settings.DISPATCHER = {"keys": {"api": {}, "tenant:*": {}}, "tasks": tasks}

    def charge(user: int) -> None: ...

    become("celery:Task", broker_write_url="redis://localhost:6379/0").task(name="tests.charge", shared=False)(charge)
    messages = found()
    assert [message.id for message in messages] == [f"dispatcher.{code}" for code, _ in wanted]
    for message, (_, words) in zip(messages, wanted, strict=True):
        assert words in message.msg


def test_a_task_that_is_left_to_a_broker_in_memory_is_w016(become: Callable[..., Celery], settings: Any) -> None:
    app = become("celery:Task", broker_write_url="memory://")
    app.task(name="tests.rest", shared=False)(nothing)
    settings.DISPATCHER = {"tasks": {"tests.rest": None, "*": []}}
    (message,) = found()
    assert (message.id, message.level) == ("dispatcher.W016", checks.WARNING)
    assert "tests.rest" in message.msg
    assert '"*": []' in str(message.hint)
    settings.DISPATCHER = {"tasks": {"*": []}}
    assert found() == []


@pytest.mark.parametrize(
    ("backend", "wanted"), [("file:///tmp", ["dispatcher.W016"]), ("cache+memory://", []), ("disabled://", [])]
)
def test_chords_that_a_task_left_to_a_broker_in_memory_is_to_close_are_w016(
    become: Callable[..., Celery], settings: Any, backend: str, wanted: list[str]
) -> None:
    become("celery:Task", broker_write_url="memory://", result_backend=backend)
    settings.DISPATCHER = {"tasks": {"celery.*": None, "*": []}}
    assert ids() == wanted
    settings.DISPATCHER = {"tasks": {"*": []}}
    assert ids() == []


@pytest.mark.parametrize("name", ["celery_rate_limits", "unticketed"])
def test_a_word_that_a_setting_does_not_have_is_e002(name: str, settings: Any) -> None:
    settings.DISPATCHER = {name: "sometimes"}
    (message,) = found()
    assert message.id == "dispatcher.E002"
    assert f"DISPATCHER[{name!r}] is 'sometimes': give one of" in message.msg


def test_a_task_whose_class_can_not_be_fenced_is_e005(become: Callable[..., Celery]) -> None:
    class Closed(Task):
        def __init_subclass__(cls, **_: Any) -> None:
            if cls.__mro__[1] is not Closed:
                message = "no subclasses"
                raise TypeError(message)

    become("celery:Task").task(name="tests.closed", base=Closed, shared=False)(nothing)
    (message,) = found()
    assert message.id == "dispatcher.E005"
    assert "the task tests.closed can't be fenced: no subclasses" in message.msg
    assert "dispatcher.celery.DispatchedTask" in (message.hint or "")


def test_a_process_without_a_celery_app_is_e005(become: Callable[..., Celery]) -> None:
    Celery("default", fixups=[], set_as_current=False, loader="default").set_current()
    (hint,) = [message.hint or "" for message in found() if message.id == "dispatcher.E005"]
    assert "Import your Celery app" in hint


@pytest.mark.parametrize("name", ["pickle", "application/x-python-serialize"])
def test_an_app_that_accepts_pickle_is_e006(name: str, become: Callable[..., Celery]) -> None:
    become(accept_content=["json", name])
    assert ids() == ["dispatcher.E006"]


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


@pytest.mark.django_db(transaction=True)
def test_a_database_without_a_pooler_is_not_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", raising=False)
    assert "dispatcher.W014" not in [message.id for message in found(databases=["default"])]


def test_no_connection_is_made_by_a_plain_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(connections["default"], "ensure_connection", fail)
    assert found() == []


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE", "READ_COMMITTED"])
def test_an_isolation_level_that_hides_what_was_waited_for_is_e009(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", IsolationLevel[level])
    assert ids() == ([] if level == "READ_COMMITTED" else ["dispatcher.E009"])


def test_a_project_where_neither_beat_nor_workers_tick_is_warned_by_w001(without_beat: None, settings: Any) -> None:
    assert found() == []
    settings.DISPATCHER = {"fallback_schedule": False}
    (message,) = found()
    assert (message.id, message.level) == ("dispatcher.W001", checks.WARNING)
    assert "CELERY_BEAT_SCHEDULE" in (message.hint or "")


def test_an_entry_of_plain_beat_is_enough(without_beat: None, settings: Any, broker: Callable[..., None]) -> None:
    settings.DISPATCHER = {"fallback_schedule": False, "delivery": {}}
    broker("memory://")
    assert ids() == ["dispatcher.W001"]
    current_app.conf.beat_schedule = {"tick": {"task": "dispatcher.tick", "schedule": 1.0}}
    assert found() == []


# Connections that are not kept: W015


@pytest.mark.parametrize(
    ("age", "options", "is_kept"),
    [(0, {}, False), (0, {"pool": True}, True), (0, {"pool": {"max_size": 5}}, True), (5, {}, True), (None, {}, True)],
)
def test_a_connection_that_is_closed_after_each_request_is_w015(
    age: int | None, options: dict[str, Any], *, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", age)
    monkeypatch.setitem(
        connection.settings_dict, "OPTIONS", {"connect_timeout": 5, "tcp_user_timeout": 9000, **options}
    )
    monkeypatch.setattr("dispatcher.checks.network.find_spec", lambda name: name == "psycopg_pool" or None)
    assert ids() == ([] if is_kept else ["dispatcher.W015"])
    assert all("CONN_HEALTH_CHECKS" in (message.hint or "") for message in found())


# A network that goes silent, or a broker in memory: W011, W012, W013, W016


@pytest.fixture
def broker(become: Callable[..., Celery]) -> Callable[..., None]:
    """Return what gives the current Celery app this broker with these transport options."""
    return lambda url, **options: become(broker_write_url=url, broker_transport_options=options)


LIMITED = {"socket_connect_timeout": 2, "socket_timeout": 5}
RABBITMQ = ("amqp://localhost//", "amqps://localhost//", "amqp://one//;amqp://two//")


@pytest.mark.parametrize(
    ("url", "options", "warned", "words"),
    [
        ("redis://localhost:6379/0", {}, "W011", "no socket_timeout and no socket_connect_timeout"),
        ("rediss://localhost:6379/0", {"socket_connect_timeout": 2}, "W011", "no socket_timeout."),
        ("redis://localhost:6379/0", LIMITED, None, ""),
        ("redis+socket:///run/redis.sock", {}, None, ""),
        *((url, {}, "W012", '"confirm_publish": True') for url in RABBITMQ),
        *((url, {"confirm_publish": True}, None, "") for url in RABBITMQ),
    ],
)
def test_a_broker_that_delivers_and_may_block_for_ever_or_does_not_confirm_is_warned_of(
    broker: Callable[..., None], settings: Any, url: str, options: dict[str, Any], *, warned: str | None, words: str
) -> None:
    broker(url, **options)
    settings.DISPATCHER = {"delivery": {"reports*": "direct"}}
    assert found() == [], "no call uses it"
    settings.DISPATCHER = {"delivery": {"reports*": "broker"}}
    messages = found()
    assert [(each.id, each.level) for each in messages] == (
        [(f"dispatcher.{warned}", checks.WARNING)] if warned else []
    )
    assert all(words in f"{each.msg} {each.hint}" for each in messages)


def test_a_broker_in_memory_that_is_to_deliver_calls_is_w016(broker: Callable[..., None], settings: Any) -> None:
    broker("memory://")
    for delivery in ({}, {"mail": "direct"}):
        settings.DISPATCHER = {"delivery": delivery}
        assert found() == []
    settings.DISPATCHER = {"delivery": {"mail": "direct", "reports*": "broker"}}
    (message,) = found()
    assert (message.id, message.level) == ("dispatcher.W016", checks.WARNING)
    assert "'reports*'" in message.msg
    broker("redis://localhost:6379/0", **LIMITED)
    assert found() == []
    broker("redis://localhost:6379/0")
    current_app.conf.task_always_eager = True
    assert found() == []


@pytest.mark.parametrize(
    ("module", "url", "words"),
    [
        ("packaging.version", "redis://localhost:6379/0", 'pip install "celery[redis]"'),
        ("", "carrier-pigeon://localhost", "No such transport: carrier-pigeon"),
    ],
)
def test_a_broker_whose_library_is_missing_or_that_does_not_exist_is_e018(
    broker: Callable[..., None], module: str, url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "_transport_cache", {})
    monkeypatch.delitem(sys.modules, "kombu.transport.redis", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    broker(url)
    (message,) = found()
    assert (message.id, words in f"{message.msg} {message.hint}") == ("dispatcher.E018", True)


def test_psycopg2_beside_psycopg_3_is_w023(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = ModuleType("psycopg2")
    installed.__spec__ = ModuleSpec("psycopg2", None)
    monkeypatch.setitem(sys.modules, "psycopg2", installed)
    (message,) = found()
    assert (message.id, "silence this check" in str(message.hint)) == ("dispatcher.W023", True)


# A pool of connections that is not installed (E018), or too small (W020)


@pytest.mark.parametrize(
    ("pool", "workers", "needed"),
    [
        (True, {}, None),
        ({"min_size": 1, "max_size": 3}, {}, 4),
        ({"min_size": 2}, {}, 4),
        (True, {"worker_pool": "prefork", "worker_concurrency": 20}, None),
        (True, {"worker_pool": "threads", "worker_concurrency": 20}, 24),
        ({"max_size": 24}, {"worker_pool": "gevent", "worker_concurrency": 20}, None),
    ],
    ids=str,
)
def test_a_pool_that_is_too_small_for_a_worker_is_w020_and_one_that_is_not_installed_e018(
    pool: Any, workers: dict[str, Any], needed: int | None, become: Callable[..., Celery], monkeypatch: Any
) -> None:
    become(**workers)
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", pool)
    monkeypatch.setitem(sys.modules, "psycopg_pool", None)
    (message,) = found()
    assert (message.id, 'pip install "psycopg[pool]"' in str(message.hint)) == ("dispatcher.E018", True)
    installed = ModuleType("psycopg_pool")
    installed.__spec__ = ModuleSpec("psycopg_pool", None)
    monkeypatch.setitem(sys.modules, "psycopg_pool", installed)
    assert ids() == ([] if needed is None else ["dispatcher.W020"])
    assert all(f'"max_size": {needed}' in str(message.hint) for message in found())


@pytest.mark.parametrize(
    ("host", "options", "missing"),
    [
        ("db.example", {}, "no connect_timeout and no tcp_user_timeout"),
        ("", {"host": "db.example", "connect_timeout": 5}, "no tcp_user_timeout"),
        ("db.example", {"connect_timeout": 5, "tcp_user_timeout": 9000}, None),
        ("/run/postgresql", {}, None),
        ("", {}, None),
        ("", {"service": "of a file"}, None),
    ],
    ids=str,
)
def test_a_database_that_may_block_for_ever_is_w013(
    host: str, options: dict[str, Any], missing: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", host)
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
    assert ids() == ([] if missing is None else ["dispatcher.W013"])
    assert (missing or "") in texts()
