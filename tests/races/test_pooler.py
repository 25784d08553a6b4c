"""The pooler is really there: clients share server connections, and the engine leaves nothing behind on them."""

from contextlib import ExitStack
from datetime import timedelta
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.core import checks
from django.db import connection
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.conf import conf
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from project.pooler import Pooler, pgbouncer
from tests.races.audit import audit
from tests.races.lockstep import at_once, concurrent
from tests.races.traffic import tick_and_work

pytestmark = [pytest.mark.needs_pooler, concurrent]


def pid() -> int:
    """Return which process of the server answers."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def client() -> psycopg.Connection[Any]:
    return psycopg.connect(**connection.get_connection_params())


def on_each_server(pooler: Pooler, ask: str) -> dict[int, object]:
    """Return what each server connection answers, by its process; so many clients hold one each for a moment."""
    with ExitStack() as held:
        answers = [
            held.enter_context(client()).execute(f"SELECT pg_backend_pid(), ({ask})").fetchone()
            for _ in range(pooler.size)
        ]
    return dict(answers)


def test_more_clients_than_servers_are_served_at_once(pooler: Pooler) -> None:
    clients = 3 * pooler.size
    all_in, all_out = Barrier(clients), Barrier(clients)

    def meet() -> set[int]:
        all_in.wait(30)
        seen = {pid() for _ in range(20)}
        all_out.wait(30)
        return seen

    seen = at_once(*[meet] * clients)
    servers = set[int]().union(*seen)
    assert len(servers) <= pooler.size
    assert max(len(each) for each in seen) > 1


def test_a_client_is_not_served_by_the_same_process_each_time(pooler: Pooler) -> None:
    first = pid()
    with ExitStack() as held:
        # Until another client's transaction has the one that served this one.
        holders = [held.enter_context(client()) for _ in range(pooler.size - 1)]
        taken = {holder.execute("SELECT pg_backend_pid()").fetchone()[0] for holder in holders}
        assert first in taken
        assert pid() not in taken


LEFT = {
    "settings": (
        "SELECT string_agg(name, ' ') FROM pg_settings WHERE source = 'session'"
        # Each transaction begins with its own isolation.
        " AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'transaction_isolation')"
    ),
    "prepared statements": "SELECT count(*) FROM pg_prepared_statements",
    "cursors": "SELECT count(*) FROM pg_cursors WHERE is_holdable",
    "advisory locks": "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
    "channels": "SELECT count(*) FROM pg_listening_channels()",
    "temporary tables": "SELECT count(*) FROM pg_class WHERE relpersistence = 't'",
}


def left(pooler: Pooler) -> dict[str, set[object]]:
    """Return what the server connections have kept of those that they served."""
    return {what: set(filter(None, on_each_server(pooler, ask).values())) for what, ask in LEFT.items()}


def test_the_engine_leaves_nothing_on_a_server_connection(pooler: Pooler) -> None:
    RateLimitKey.objects.declare("api", concurrency=3, rate=(1000, 1), throttle=(1000, 1))
    CallQueue.objects.send("noop", keys=["api"])
    CallQueue.objects.send_many([Call(task="noop", keys=["api"])] * 20)
    api.cancel([CallQueue.objects.waiting().last().id])
    api.override("api", until=timezone.now() + timedelta(seconds=1), concurrency=1)
    at_once(*[tick_and_work] * 3)
    engine.recover()
    engine.cleanup()
    assert left(pooler) == {what: set() for what in LEFT}
    audit(limits_changed=True)


def test_what_somebody_leaves_is_found(pooler: Pooler) -> None:
    with client() as careless:
        careless.autocommit = True
        careless.execute("SELECT set_config('enable_seqscan', 'off', false), pg_advisory_lock(1)")
        careless.execute("PREPARE kept AS SELECT 1")
        careless.execute("LISTEN kept")
        careless.execute("CREATE TEMPORARY TABLE kept ()")
    found = left(pooler)
    pooler.ask("RECONNECT")
    assert {what for what, counts in found.items() if counts} == set(LEFT) - {"cursors"}


def test_statements_are_not_prepared_behind_a_pooler_unless_somebody_says_so() -> None:
    assert connection.settings_dict["DISABLE_SERVER_SIDE_CURSORS"] is True
    assert conf().prepared_statements is None
    engine.sweep()
    assert connection.connection.prepare_threshold is None


def warned() -> list[str | None]:
    """Return the ids of what `check --database default` warns of."""
    found = checks.run_checks(tags=["database"], databases=["default"])
    return [message.id for message in found if str(message.id).startswith("dispatcher.")]


def test_a_pooler_in_transaction_mode_that_the_settings_do_not_know_of_is_w014(monkeypatch: pytest.MonkeyPatch) -> None:
    assert warned() == []
    monkeypatch.delitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", raising=False)
    assert warned() == ["dispatcher.W014"]


def test_a_pooler_in_session_mode_needs_no_warning(
    pooler: Pooler, services: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = services.run_dir / "session"
    run_dir.mkdir(exist_ok=True)
    monkeypatch.delitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", raising=False)
    with pgbouncer(run_dir, pooler.direct_url, size=pooler.size, mode="session") as by_session:
        connection.close()
        monkeypatch.setitem(connection.settings_dict, "PORT", urlsplit(by_session.database_url).port)
        try:
            assert pid() != connection.connection.info.backend_pid
            assert warned() == []
        finally:
            connection.close()
