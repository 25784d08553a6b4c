"""A worker keeps its connection to the dispatcher's database from task to task, whatever CONN_MAX_AGE is."""

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta
from threading import Thread
from types import SimpleNamespace
from typing import Any
from uuid import uuid4
from weakref import ref

import pytest
from celery import signals
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dispatcher import engine, sql
from dispatcher.celery.heartbeat import KeptConnections
from dispatcher.engine import attempt
from dispatcher.lifecycle import claim
from dispatcher.models import CallQueue
from dispatcher.states import State
from tests import db_admin
from tests.builders import admitted, committed, seen, ticket_of
from tests.steps.sample_tasks import do

pytestmark = [committed, pytest.mark.session, pytest.mark.pooler, pytest.mark.django]

NEVER = 2**31


@pytest.fixture(autouse=True)
def _no_connection_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what Django has by default."""
    for name, value in {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False}.items():
        monkeypatch.setitem(connection.settings_dict, name, value)


@pytest.fixture
def process() -> Iterator[ThreadPoolExecutor]:
    """Return what has connections of its own, as a process of the pool has."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        yield thread
        # Looked up on the thread whose connection it is.
        thread.submit(lambda: connection.close()).result()  # noqa: PLW0108


def start(pool: str = "prefork", *, db_reuse_max: int | None = None) -> int | None:
    """Start a worker as far as its connections go; return after how many tasks Celery closes them."""
    fixup = SimpleNamespace(db_reuse_max=db_reuse_max)
    app = SimpleNamespace(_fixups=[SimpleNamespace(_worker_fixup=fixup)])
    KeptConnections(SimpleNamespace(app=app, pool_cls=SimpleNamespace(__module__=f"celery.concurrency.{pool}")))
    return fixup.db_reuse_max


def run_task() -> int:
    """Do what a task does; return the process of the server that served it."""
    signals.task_prerun.send(sender=do, task=do)
    served_by = _pid()
    signals.task_postrun.send(sender=do, task=do)
    return served_by


def _pid() -> int:
    with sql.connection().cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid: int = cursor.fetchone()[0]
        return pid


def served(process: ThreadPoolExecutor, times: int) -> int:
    """Return how many connections so many tasks took."""
    return len({process.submit(run_task).result() for _ in range(times)})


def test_without_a_worker_each_task_connects_again(process: ThreadPoolExecutor) -> None:
    assert served(process, 3) == 3


@pytest.mark.parametrize("pool", ["prefork", "thread", "solo"])
def test_a_worker_keeps_its_connection(pool: str, process: ThreadPoolExecutor) -> None:
    assert start(pool) == NEVER
    assert served(process, 3) == 1


def test_a_connection_that_is_gone_between_two_tasks_is_replaced(process: ThreadPoolExecutor) -> None:
    start()
    pid = process.submit(run_task).result()
    with closing(db_admin.connect()) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert process.submit(run_task).result() != pid
    assert served(process, 2) == 1


def test_a_statement_that_only_reads_checks_the_connection(
    process: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}.items():
        monkeypatch.setitem(connection.settings_dict, name, value)

    def begin_request() -> int:
        connection.close_if_unusable_or_obsolete()
        with CaptureQueriesContext(connection) as asked:
            (time,) = sql.fetch_checked("read_clock", datetime, {})
            assert (sql.now() - time < timedelta(minutes=1), len(asked)) == (True, 0)
        return _pid()

    pid = process.submit(begin_request).result()
    assert process.submit(begin_request).result() == pid
    with closing(db_admin.connect()) as admin:
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    assert process.submit(begin_request).result() != pid


def test_a_claim_checks_the_connection(process: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CONN_MAX_AGE": None, "CONN_HEALTH_CHECKS": True}.items():
        monkeypatch.setitem(connection.settings_dict, name, value)
    monkeypatch.setattr(attempt, "sleep", fail)
    pids = []
    for _ in range(2):
        call = admitted()
        process.submit(lambda: connection.close_if_unusable_or_obsolete()).result()  # noqa: PLW0108
        claimed = process.submit(attempt.claim_or_wait, call.id, ticket_of(call), claim_id=uuid4()).result()
        assert isinstance(claimed, claim.Claimed)
        pids.append(process.submit(_pid).result())
        with closing(db_admin.connect()) as admin:
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pids[-1]])
    assert len(set(pids)) == 2


def fail(_: float) -> None:
    """Stand in for a pause that must not be made."""
    raise AssertionError


@pytest.mark.parametrize("pool", ["gevent", "eventlet"])
def test_greenlets_keep_none(pool: str) -> None:
    assert start(pool) is None
    assert connection.settings_dict["CONN_MAX_AGE"] == 0


@pytest.mark.parametrize(
    ("name", "value"), [("CONN_MAX_AGE", 5), ("CONN_MAX_AGE", None), ("OPTIONS", {"pool": True})], ids=str
)
def test_what_the_project_says_of_its_connections_holds(name: str, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, name, value)
    before = dict(connection.settings_dict)
    assert start() == NEVER
    assert connection.settings_dict == before


def test_a_worker_whose_connections_celery_is_to_reuse_is_left_alone() -> None:
    assert start(db_reuse_max=1) == 1
    assert connection.settings_dict["CONN_MAX_AGE"] == 0


# Prepared statements


def test_a_sender_that_is_not_prepared_for_prepared_statements_sends_too(settings: Any) -> None:
    settings.DISPATCHER = {"prepared_statements": False, "pipeline": False}
    assert seen(CallQueue.objects.send("t")).state == State.DISPATCHED
    assert connection.in_atomic_block is False


@pytest.mark.parametrize(
    ("setting", "is_behind_a_pooler", "prepares"),
    [(None, False, True), (None, True, False), (True, True, True), (False, False, False)],
)
def test_statements_are_prepared_unless_the_setting_or_a_pooler_says_otherwise(
    settings: Any, monkeypatch: pytest.MonkeyPatch, *, setting: bool | None, is_behind_a_pooler: bool, prepares: bool
) -> None:
    settings.DISPATCHER = {"prepared_statements": setting}
    monkeypatch.setitem(connection.settings_dict, "DISABLE_SERVER_SIDE_CURSORS", is_behind_a_pooler)
    connection.ensure_connection()
    monkeypatch.setattr(connection.connection, "prepare_threshold", None)
    connection.connection.__dict__.pop(sql._CURSORS, None)  # noqa: SLF001 -- as on a new connection
    # Nothing is sent: behind a pooler it would not be understood.
    sql._cursor(sql.connection(), "read_clock", SimpleNamespace)  # noqa: SLF001
    assert (connection.connection.prepare_threshold is not None) == prepares


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_a_thread_that_ends_keeps_no_connection() -> None:
    left = []

    def work() -> None:
        engine.sweep()
        left.append(ref(connection.connection))

    thread = Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert [each() for each in left] == [None]
