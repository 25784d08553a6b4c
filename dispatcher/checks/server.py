"""Checks that ask the server of the database."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.core import checks
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from dispatcher import sql
from dispatcher.checks.base import NAMED, Found, alias_of_calls, not_ready, without_http
from dispatcher.models import CallQueue, Queue
from dispatcher.sql import functions
from dispatcher.sql.errors import read_only
from dispatcher.states import Delivery

_POSTGRESQL_14 = 140_000
_LOOKS = 5
"""How often each of two clients asks which process of the server it has."""
_READ_ONLY = ("default_transaction_read_only", "in_hot_standby")
"""What a server reports of itself with each connection."""


# Not under the tag "dispatcher": Django 6.1 runs the database checks of a tag on all databases, and so would connect.
@checks.register(checks.Tags.database)
def check_server(databases: Sequence[str] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Check the server: E008 older than PostgreSQL 14, E019 read-only, E017 queues, W014 a pooler, W017 functions.

    Runs with `check --database` and with migrate, which an error would stop.
    """
    alias = alias_of_calls()
    if alias not in (databases or ()) or connections[alias].vendor != "postgresql":
        return []
    connection = connections[alias]
    connection.ensure_connection()
    version = connection.connection.info.server_version
    if version < _POSTGRESQL_14:
        hint = "Upgrade the server to PostgreSQL 14 or newer."
        return [checks.Error(f"PostgreSQL is version {version}.", hint=hint, id="dispatcher.E008")]
    if "on" in map(connection.connection.info.parameter_status, _READ_ONLY):
        return [
            not_ready(read_only(alias, "it is a standby, or default_transaction_read_only is on."), "dispatcher.E019")
        ]
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


def _stored_over_http(connection: BaseDatabaseWrapper) -> Found:
    named = Queue.objects.using(connection.alias).filter(delivery=Delivery.HTTP).values_list("name", flat=True)
    return without_http(f"The table {Queue._meta.db_table}", list(named.order_by("name")[:NAMED]))


@dataclass(frozen=True)
class _Function:
    name: str
    is_allowed: bool


def _missing_functions() -> Found:
    names, alias = functions.installed_names(), alias_of_calls()
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
