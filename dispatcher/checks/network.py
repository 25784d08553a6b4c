"""Checks of connections: to the broker, where it delivers calls, and to the database."""

from importlib.util import find_spec
from typing import Any

from celery import current_app
from django.core import checks
from django.db import connections

from dispatcher.checks.base import Found, alias_of_calls, read_settings
from dispatcher.states import Delivery

_POOL_SIZE = 4
"""How many connections a pool has by psycopg_pool's default."""
_OWN_CONNECTIONS = 4
"""How many threads of a worker's main process query at once, beside its tasks."""
_ONE_PROCESS = {"threads", "gevent", "eventlet"}
"""Pools of workers whose tasks share one process, and so its connections."""


@checks.register("dispatcher")
def check_network(**_: Any) -> list[checks.CheckMessage]:
    """Check the connections: E018 a library is missing, W013 the database may block for ever, W015 none is kept.

    And W020, a pool that is too small. Of a broker that delivers calls: W011 Redis, W012 RabbitMQ, and W016, one that
    no other process reaches.
    """
    return [*_broker_faults(), *_database_timeouts(), *_pool(), *_closed_connections()]


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
    named = [name for name, delivery in read_settings().delivery.items() if delivery == Delivery.BROKER]
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
    alias = alias_of_calls()
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
        "A database that does not answer blocks workers and senders for minutes: "
        f"DATABASES[{alias_of_calls()!r}]['OPTIONS'] has no {' and no '.join(missing)}."
    )
    hint = (
        'Set "connect_timeout": 5 (seconds), "tcp_user_timeout": 15000 (milliseconds), "keepalives_idle": 5, '
        '"keepalives_interval": 5, "keepalives_count": 3.'
    )
    yield checks.Warning(message, hint=hint, id="dispatcher.W013")


def _closed_connections() -> Found:
    settings, alias = _database_settings(), alias_of_calls()
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
    settings, alias = _database_settings(), alias_of_calls()
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
