"""System checks: one id per fault, each with its remedy."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from celery import current_app
from django.apps import apps
from django.conf import settings as django_settings
from django.core import checks
from django.db import OperationalError, connections, router
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import IsolationLevel

from dispatcher import sql
from dispatcher.conf import Conf, conf, out_of_range, read
from dispatcher.errors import ConfigurationError, DatabaseNotReady, PolicyInvalid
from dispatcher.extension import HTTP_MISSING, registered
from dispatcher.lanes.mixture import check_declared
from dispatcher.limits.policy import Policy
from dispatcher.limits.retry import Retry
from dispatcher.models import CallQueue, Queue
from dispatcher.sql import functions
from dispatcher.sql.errors import NotPostgreSQL, check_kind, read_only
from dispatcher.states import Delivery
from dispatcher.validate import key_name

Found = Iterator[checks.CheckMessage]

_POSTGRESQL_14 = 140_000
_READ_COMMITTED = (None, IsolationLevel.READ_COMMITTED)
_LOOKS = 5
"""How often each of two clients asks which process of the server it has."""
_NAMED = 5
"""How many queues or tasks a message names."""
_READ_ONLY = ("default_transaction_read_only", "in_hot_standby")
"""What a server reports of itself with each connection."""
_POOL_SIZE = 4
"""How many connections a pool has by psycopg_pool's default."""
_OWN_CONNECTIONS = 4
"""How many threads of a worker's main process query at once, beside its tasks."""
_ONE_PROCESS = {"threads", "gevent", "eventlet"}
"""Pools of workers whose tasks share one process, and so its connections."""
_PICKLE = {"pickle", "application/x-python-serialize"}


@checks.register("dispatcher")
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Check DISPATCHER: E001 unknown or wrong type, E002 ranges, E003 keys, E004 retry, E017 http, W018 shares."""
    given = getattr(django_settings, "DISPATCHER", None)
    settings, problems = read({} if given is None else given)
    unread = [checks.Error(problem, id="dispatcher.E001") for problem in problems]
    wrong = [checks.Error(problem, id="dispatcher.E002") for problem in out_of_range(settings)]
    fetched = [queue for queue, delivery in settings.delivery.items() if delivery == Delivery.HTTP]
    return [*unread, *wrong, *_policies(settings), *_without_http("DISPATCHER['delivery']", fetched)]


@checks.register("dispatcher")
def check_celery(**_: Any) -> list[checks.CheckMessage]:
    """Check the Celery app: E005 its tasks can't claim calls, or there is none, E006 pickle, W019 Celery's limits."""
    from dispatcher.celery import fence  # noqa: PLC0415 -- they need the app registry
    from dispatcher.engine import compose  # noqa: PLC0415 -- they need the app registry

    found: list[checks.CheckMessage] = []
    if not compose.has_app():
        found.append(checks.Error(compose.NO_APP, hint=compose.IMPORT_APP, id="dispatcher.E005"))
    for problem in fence.fence_all(current_app):
        message = f"The calls of a task would never be claimed: {problem}."
        hint = "Give the task another base class, such as your own subclass of dispatcher.celery.DispatchedTask."
        found.append(checks.Error(message, hint=hint, id="dispatcher.E005"))
    if _PICKLE.intersection(current_app.conf.accept_content):
        message = "The Celery app accepts pickle, so anyone who reaches the broker can run code."
        found.append(checks.Error(message, hint='Set accept_content = ["json"].', id="dispatcher.E006"))
    rated = sorted(name for name, task in current_app.tasks.items() if task.rate_limit)
    if rated and _settings().celery_rate_limits != "global":
        message = f"Celery's rate_limit has no effect on calls of direct queues: that of {', '.join(rated[:_NAMED])}."
        hint = (
            "Set DISPATCHER['celery_rate_limits'] = \"global\", so that it holds over all workers, or give the calls a "
            'key that is limited, such as {"rate": {"limit": 100, "period": "PT1M"}}.'
        )
        found.append(checks.Warning(message, hint=hint, id="dispatcher.W019"))
    return found


@checks.register("dispatcher")
def check_installed(**_: Any) -> list[checks.CheckMessage]:
    """Check the installation: W001 nothing ticks, W023 psycopg2, E007 not PostgreSQL, E009 isolation, E014 models."""
    found: list[checks.CheckMessage] = []
    if find_spec("psycopg2") is not None:
        message = "psycopg2 is installed beside psycopg 3, which Django uses for all databases where it finds both."
        hint = "Run your tests with psycopg 3, then uninstall psycopg2, or silence this check."
        found.append(checks.Warning(message, hint=hint, id="dispatcher.W023"))
    if not (apps.is_installed("django_celery_beat") or _has_plain_entry() or _settings().fallback_schedule):
        message = (
            "Nothing runs dispatcher.tick: django_celery_beat is not installed, CELERY_BEAT_SCHEDULE has no entry for "
            "it, and DISPATCHER['fallback_schedule'] is False."
        )
        hint = (
            'Add "django_celery_beat" to INSTALLED_APPS, or entries to CELERY_BEAT_SCHEDULE, or leave '
            "fallback_schedule at True, so that workers tick by themselves."
        )
        found.append(checks.Warning(message, hint=hint, id="dispatcher.W001"))
    alias = _alias()
    if alias not in connections:
        message = f"DISPATCHER['database'] is {alias!r}, which is not in DATABASES."
        return [*found, checks.Error(message, hint=f"Use one of {', '.join(connections)}.", id="dispatcher.E002")]
    try:
        check_kind(connections[alias])
    except NotPostgreSQL as error:
        found.append(_error(error, "dispatcher.E007"))
    if connections[alias].settings_dict["OPTIONS"].get("isolation_level") not in _READ_COMMITTED:
        message = f"DATABASES[{alias!r}] has another isolation level than READ COMMITTED."
        hint = "What was waited for must be seen: leave isolation_level out of its OPTIONS."
        found.append(checks.Error(message, hint=hint, id="dispatcher.E009"))
    if (elsewhere := router.db_for_write(CallQueue)) != alias:
        message = (
            f"DISPATCHER['database'] is {alias!r}, but by DATABASE_ROUTERS the dispatcher's models are in "
            f"{elsewhere!r}: the admin and the managers would look there."
        )
        hint = (
            'Put "dispatcher.routers.DispatcherRouter" first in DATABASE_ROUTERS, then run '
            f"manage.py migrate --database {alias}."
        )
        found.append(checks.Error(message, hint=hint, id="dispatcher.E014"))
    return found


@checks.register("dispatcher")
def check_network(**_: Any) -> list[checks.CheckMessage]:
    """Check the connections: E018 a library is missing, W013 the database may block for ever, W015 none is kept.

    And W020, a pool that is too small. Of a broker that delivers calls: W011 Redis, W012 RabbitMQ, and W016, one that
    no other process reaches.
    """
    return [*_broker_faults(), *_database_timeouts(), *_pool(), *_closed_connections()]


# Not under the tag "dispatcher": Django 6.1 runs the database checks of a tag on all databases, and so would connect.
@checks.register(checks.Tags.database)
def check_server(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Check the server: E008 older than PostgreSQL 14, E019 read-only, E017 queues, W014 a pooler, W017 functions.

    Runs with `check --database` and with migrate, which an error would stop.
    """
    alias = _alias()
    if alias not in (databases or ()) or connections[alias].vendor != "postgresql":
        return []
    connection = connections[alias]
    connection.ensure_connection()
    version = connection.connection.info.server_version
    if version < _POSTGRESQL_14:
        hint = "Upgrade the server to PostgreSQL 14 or newer."
        return [checks.Error(f"PostgreSQL is version {version}.", hint=hint, id="dispatcher.E008")]
    if "on" in map(connection.connection.info.parameter_status, _READ_ONLY):
        return [_error(read_only(alias, "it is a standby, or default_transaction_read_only is on."), "dispatcher.E019")]
    has_tables = CallQueue._meta.db_table in connection.introspection.table_names()
    found = [*_stored_over_http(connection), *_missing_functions()] if has_tables else []
    if connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS") or not _shares_servers(connection):
        return found
    message = f"DATABASES[{alias!r}] is behind a pooler in transaction mode, without DISABLE_SERVER_SIDE_CURSORS."
    hint = (
        f"Set DATABASES[{alias!r}]['DISABLE_SERVER_SIDE_CURSORS'] = True: prepared statements and server-side "
        "cursors belong to one server connection, and the next transaction may get another."
    )
    return [*found, checks.Warning(message, hint=hint, id="dispatcher.W014")]


def _error(error: DatabaseNotReady, code: str) -> checks.Error:
    message, _, remedy = str(error).partition("\n")
    return checks.Error(message, hint=remedy, id=code)


def _settings() -> Conf:
    """Return the settings, or the defaults where they can't be read, which E001 reports."""
    try:
        return conf()
    except ConfigurationError:
        return Conf()


def _alias() -> str:
    return _settings().database


def _has_plain_entry() -> bool:
    """Return whether beat's schedule in the settings names the tick."""
    entries = (current_app.conf.beat_schedule or {}).values()
    return any(entry.get("task") == "dispatcher.tick" for entry in entries if isinstance(entry, dict))


def _broker() -> tuple[str, str]:
    """Return the kind and the address of the broker; nothing where tasks run at once."""
    if current_app.conf.task_always_eager:
        return "", ""
    with current_app.connection_for_write() as broker:
        return broker.transport.driver_type, broker.hostname or ""


def _broker_faults() -> Found:
    """Return an error for a broker that can't be used, and what is risky about one that is to deliver calls."""
    try:
        kind, address = _broker()
    except Exception as error:  # noqa: BLE001 -- kombu's transports fail in many ways without their libraries
        name = str(current_app.conf.broker_write_url).partition("://")[0]
        message = f"The broker of CELERY_BROKER_URL, {name}, can't be used: {error!r}."
        hint = f'Install what it needs, as pip install "celery[{name}]" does, or correct the URL.'
        yield checks.Error(message, hint=hint, id="dispatcher.E018")
        return
    named = [name for name, delivery in _settings().delivery.items() if delivery == Delivery.BROKER]
    if not named:
        return
    options = current_app.conf.broker_transport_options
    if kind == "memory":
        message = (
            f"DISPATCHER['delivery'] lets the broker deliver {', '.join(map(repr, named))}, but the broker is the "
            "memory of each process: no worker would get a call."
        )
        hint = 'Set CELERY_BROKER_URL to a broker, or the delivery to "direct".'
        yield checks.Warning(message, hint=hint, id="dispatcher.W016")
        return
    if kind == "redis" and not address.startswith("socket"):
        missing = [name for name in ("socket_timeout", "socket_connect_timeout") if not options.get(name)]
        what, code = "A Redis that does not answer blocks workers and .delay() for ever", "dispatcher.W011"
        remedy = '{"socket_timeout": 5, "socket_connect_timeout": 2, "socket_keepalive": True}'
    elif kind == "amqp":
        missing = [] if options.get("confirm_publish") else ["confirm_publish"]
        what, code = "A message that RabbitMQ did not take is lost without an error", "dispatcher.W012"
        remedy = '{"confirm_publish": True}'
    else:
        return
    if missing:
        message = f"{what}: broker_transport_options has no {' and no '.join(missing)}."
        yield checks.Warning(message, hint=f"Set CELERY_BROKER_TRANSPORT_OPTIONS = {remedy}.", id=code)


def _database_settings() -> dict[str, Any] | None:
    """Return the settings of the database; None for one that is not there, or not PostgreSQL, which is reported."""
    alias = _alias()
    known = alias in connections and connections[alias].vendor == "postgresql"
    return connections[alias].settings_dict if known else None


def _database_timeouts() -> Found:
    if (settings := _database_settings()) is None:
        return
    options = settings["OPTIONS"]
    host = str(options.get("host") or settings["HOST"] or "")
    missing = [name for name in ("connect_timeout", "tcp_user_timeout") if not options.get(name)]
    if "service" in options or not host or host.startswith(("/", "@")) or not missing:
        return
    message = (
        f"A database that does not answer blocks workers and senders for minutes: DATABASES[{_alias()!r}]['OPTIONS'] "
        f"has no {' and no '.join(missing)}."
    )
    hint = (
        'Set "connect_timeout": 5 (seconds), "tcp_user_timeout": 15000 (milliseconds), "keepalives_idle": 5, '
        '"keepalives_interval": 5, "keepalives_count": 3.'
    )
    yield checks.Warning(message, hint=hint, id="dispatcher.W013")


def _closed_connections() -> Found:
    settings, alias = _database_settings(), _alias()
    if settings is None or settings["CONN_MAX_AGE"] != 0 or settings["OPTIONS"].get("pool"):
        return
    message = (
        f"DATABASES[{alias!r}] has CONN_MAX_AGE = 0 and no pool: each request opens a connection, which costs several "
        "times as much as a send. Workers keep their connections all the same."
    )
    hint = (
        f"Set DATABASES[{alias!r}]['CONN_MAX_AGE'] = 600 and ['CONN_HEALTH_CHECKS'] = True; under ASGI, or with "
        "gevent, ['OPTIONS']['pool'] = True instead."
    )
    yield checks.Warning(message, hint=hint, id="dispatcher.W015")


def _pool() -> Found:
    settings, alias = _database_settings(), _alias()
    given = settings and settings["OPTIONS"].get("pool")
    if not given:
        return
    if find_spec("psycopg_pool") is None:
        message = f"DATABASES[{alias!r}]['OPTIONS'] has a pool, but psycopg_pool is not installed."
        yield checks.Error(message, hint='Run pip install "psycopg[pool]".', id="dispatcher.E018")
        return
    options = given if isinstance(given, dict) else {}
    size = options.get("max_size") or options.get("min_size", _POOL_SIZE)
    shared = current_app.conf.worker_concurrency if current_app.conf.worker_pool in _ONE_PROCESS else None
    needed = _OWN_CONNECTIONS + (shared or 0)
    if size >= needed:
        return
    message = (
        f"The pool of DATABASES[{alias!r}] has {size} connections, but a worker needs {needed}: calls and heartbeats "
        "would wait for each other."
    )
    hint = f"Set DATABASES[{alias!r}]['OPTIONS']['pool'] = {{\"max_size\": {needed}}}, or more."
    yield checks.Warning(message, hint=hint, id="dispatcher.W020")


def _without_http(where: str, queues: Sequence[str]) -> Found:
    if queues and not registered().serves_http:
        message = f"{where} gives {', '.join(map(repr, queues))} to workers that fetch over HTTP, but none can."
        yield checks.Error(message, hint=f"{HTTP_MISSING[0].upper()}{HTTP_MISSING[1:]}", id="dispatcher.E017")


def _stored_over_http(connection: BaseDatabaseWrapper) -> Found:
    named = Queue.objects.using(connection.alias).filter(delivery=Delivery.HTTP).values_list("name", flat=True)
    return _without_http(f"The table {Queue._meta.db_table}", list(named.order_by("name")[:_NAMED]))


@dataclass(frozen=True, slots=True)
class _Function:
    name: str
    is_allowed: bool


def _missing_functions() -> Found:
    names, alias = functions.installed_names(), _alias()
    known = {each.name: each.is_allowed for each in sql.fetch("find_functions", _Function, {"names": names})}
    if missing := [name for name in names if name not in known]:
        message = f"The database {alias!r} does not have {', '.join(missing)}: workers with this code start nothing."
        hint = f"Run manage.py migrate --database {alias}."
        yield checks.Warning(message, hint=hint, id="dispatcher.W017")
    if refused := [name for name in names if not known.get(name, True)]:
        message = f"The role of the database {alias!r} may not execute {', '.join(refused)}."
        hint = "As the role that migrates: GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO the role of this process."
        yield checks.Warning(message, hint=hint, id="dispatcher.W017")


def _shares_servers(connection: BaseDatabaseWrapper) -> bool:
    """Return whether two clients are seen to share a process of the server, as behind a pooler in transaction mode."""
    other = connection.copy()
    try:
        if connection.connection.info.backend_pid == _server_pid(connection):
            # A pooler gives its clients cancellation keys of its own.
            return False
        seen = [(_server_pid(connection), _server_pid(other)) for _ in range(_LOOKS)]
    except OperationalError:
        # There may be no second connection to be had.
        return False
    finally:
        other.close()
    pids, others = ({pair[client] for pair in seen} for client in range(2))
    return bool(pids & others) or len(pids) > 1 or len(others) > 1


def _server_pid(client: BaseDatabaseWrapper) -> int:
    """Return which process of the server answers; by the simple protocol, which prepares nothing."""
    client.ensure_connection()
    return int(client.connection.pgconn.exec_(b"SELECT pg_backend_pid()").get_value(0, 0) or 0)


def _policies(settings: Conf) -> Found:
    fair_by: dict[str, str] = {}
    for name, policy in settings.keys.items():
        try:
            key_name(name.replace("*", "x") if isinstance(name, str) else name)
            field = f"DISPATCHER['keys'][{name!r}]"
            parsed = Policy.parse(policy, field)
            check_declared(name, parsed, field)
            if parsed.fair_by is not None:
                fair_by[name] = parsed.fair_by
        except (PolicyInvalid, ValueError) as error:
            yield checks.Error(str(error), id="dispatcher.E003")
        except ConfigurationError:
            # The delivery that the settings give is wrong itself, which E002 reports.
            continue
    try:
        Retry.parse(settings.retry, "DISPATCHER['retry']")
    except PolicyInvalid as error:
        yield checks.Error(str(error), id="dispatcher.E004")
    yield from _shares(settings, fair_by)


def _shares(settings: Conf, fair_by: dict[str, str]) -> Found:
    """Return a warning for each key whose calls may name keys of several templates that could be their share."""
    names = sorted(name for name in settings.keys if isinstance(name, str) and name.endswith("*"))
    for key, template in fair_by.items():
        shares = [name for name in names if name.startswith(template[:-1]) and name != key]
        if len(shares) > 1:
            message = f"DISPATCHER['keys'][{key!r}].fair_by: {template!r} has the keys of {', '.join(shares)}."
            hint = (
                "The share of a call that names keys of two of them is the first by name. Name the template by which "
                "calls are to take turns, or give the others another prefix."
            )
            yield checks.Warning(message, hint=hint, id="dispatcher.W018")
