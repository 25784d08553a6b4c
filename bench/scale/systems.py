"""The two systems that are compared: databases on the server at hand, made of templates and dropped at the end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from time import monotonic
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg

from bench.scale.sizes import Size
from project.services import create_database, end_sessions


@dataclass(frozen=True)
class System:
    """One of the two, and how large it is."""

    alias: str
    size: Size

    def run(self, name: str) -> None:
        """Run the statements of `name`.sql on it, in a transaction."""
        from django.db import connections  # noqa: PLC0415 -- Django is set up when the databases are there

        connections[self.alias].ensure_connection()
        raw: psycopg.Connection[Any] = connections[self.alias].connection
        with raw.transaction(), psycopg.ClientCursor(raw) as cursor:
            cursor.execute(_statements(name, self.size))

    def settle(self) -> None:
        """End what a figure has left in flight or awake, so that it changes none of the later ones."""
        # First: what waits behind the key of that variant is part of the system.
        self.run("close_hot")
        self.run("settle")


class Databases:
    """Those that the systems are in, and their templates, named after the database that is given."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._name = urlsplit(server_url).path.removeprefix("/")

    def url(self, name: str) -> str:
        """Return the address of one of them."""
        return urlsplit(self._server_url)._replace(path=f"/{self._full(name)}").geturl()

    def copy(self, template: str, name: str) -> None:
        """Make one as a copy of another one; sessions of both are ended."""
        create_database(self._server_url, self._full(name), replace=True, template=self._full(template))

    def fill(self, name: str, size: Size, statements: str = "fill") -> None:
        """Run the statements of a file on one of them, with as much memory as a build may take, and vacuum it."""
        with psycopg.connect(self.url(name), autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            connection.execute("SET work_mem = '128MB'")
            with connection.transaction(), psycopg.ClientCursor(connection) as cursor:
                cursor.execute(_statements(statements, size))
            # So that no vacuum comes in between; also what shows an index-only scan that all rows are visible.
            connection.execute("VACUUM (ANALYZE)")
            connection.execute("CHECKPOINT")

    def stop_statements(self, *names: str) -> None:
        """End all sessions of these, so that nothing goes on there of a figure that was given up."""
        with psycopg.connect(self._server_url, autocommit=True) as connection:
            for name in names:
                end_sessions(connection, self._full(name))

    def _full(self, name: str) -> str:
        return f"{self._name}_scale_{name}"


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print to stderr how long this takes."""
    began = monotonic()
    sys.stderr.write(f"{what} ... ")
    sys.stderr.flush()
    yield
    sys.stderr.write(f"{monotonic() - began:.0f} s\n")


def _statements(name: str, size: Size) -> LiteralString:
    text = resources.files("bench.scale.sql").joinpath(f"{name}.sql").read_text("utf-8")
    return size.fill(text)
