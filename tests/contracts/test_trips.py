"""How often a step goes to the server and back: a trip costs more than most of the statements."""

import os
from collections.abc import Callable
from tempfile import TemporaryFile
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.utils import timezone

from dispatcher import engine, sql
from dispatcher.errors import CallTooLarge
from dispatcher.messages import message
from dispatcher.models import CallQueue, Process, Queue
from dispatcher.states import State
from tests.builders import SECOND, go, key, ticket_of, waiting

pytestmark = pytest.mark.django_db(transaction=True)

SENT = b"F"
"""The direction of a message in the trace: to the server."""
WAITED_FOR = {b"Sync", b"Query"}
"""The messages that end what is sent together."""
PREPARED = 7
"""After so many runs a statement is prepared: a trip of its own, once a connection."""


def traced(work: Callable[[], object]) -> list[list[bytes]]:
    """Return what a piece of work sends and receives, by libpq's own trace: a message each, field by field."""
    for _ in range(PREPARED):
        work()
    with TemporaryFile() as trace:
        connection.connection.pgconn.trace(trace.fileno())
        work()
        connection.connection.pgconn.untrace()
        trace.seek(os.SEEK_SET)
        return [fields for line in trace.read().splitlines() if len(fields := line.split(b"\t")) > 1]


def trips(work: Callable[[], object]) -> int:
    """Return how often a piece of work waits for the server: after each statement, or after all of a pipeline.

    Not counted by the answers: on a busy machine one may come before the rest of its pipeline is sent.
    """
    return sum(fields[1] == SENT and fields[3] in WAITED_FOR for fields in traced(work))


def statements(work: Callable[[], object]) -> int:
    """Return how many statements a piece of work runs."""
    return sum(b"Bind" in fields for fields in traced(work))


@pytest.fixture
def _with_a_backlog() -> None:
    """Let calls wait for room, and for their time: what a tick has nothing to do for."""
    key("full", concurrency=0)
    go(waiting("full"))
    waiting(scheduled_at=timezone.now() + 3600 * SECOND)


@pytest.mark.usefixtures("_with_a_backlog")
def test_an_idle_tick_makes_one_trip() -> None:
    assert trips(engine.tick) == 1


def test_a_call_that_ends_and_lets_the_next_one_in_makes_three_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim; its end, which dispatches the next call; the note that this one is published."""
    monkeypatch.setattr(message, "send", lambda *_: None)
    key("api", concurrency=1)
    go(*[waiting("api") for _ in range(PREPARED + 2)])

    def run() -> None:
        call = CallQueue.objects.get(state=State.DISPATCHED)
        # As Celery's worker does before each task; no check of the connection comes on top.
        connection.close_if_unusable_or_obsolete()
        engine.execute(call.id, ticket_of(call), lambda: None)

    assert connection.settings_dict["CONN_HEALTH_CHECKS"]
    assert trips(run) == 1 + 3


def test_a_send_behind_a_full_key_makes_one_trip_where_no_process_may_be_woken(monkeypatch: pytest.MonkeyPatch) -> None:
    # After a send that took long another trip looks for who has become idle meanwhile; on a busy machine each does.
    monkeypatch.setattr("dispatcher.engine.sent._LONG_S", 60)
    key("full", concurrency=0)
    Queue.objects.create(name="celery", delivery="direct")
    assert trips(lambda: CallQueue.objects.send("noop", keys=["full"])) == 1


@pytest.mark.parametrize(
    ("long_s", "is_idle", "isolation", "trips_more"),
    [
        (60, False, "read committed", 0),
        (0, False, "read committed", 1),
        (60, True, "read committed", 1),
        (60, False, "repeatable read", 1),
    ],
    ids=["soon", "late", "a process is idle", "an old snapshot"],
)
def test_after_a_commit_a_trip_wakes_where_a_process_may_be_idle(
    long_s: float, isolation: str, trips_more: int, *, is_idle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.engine.sent._LONG_S", long_s)
    key("full", concurrency=0)
    Queue.objects.create(name="celery", delivery="direct")
    if is_idle:
        Process.objects.create(id=uuid4(), queues=["other"], idle_at=timezone.now())

    def send() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
            cursor.execute("SELECT pg_sleep(0.006)")
            CallQueue.objects.send("noop", keys=["full"])

    begin, set_isolation, sleep, send_call, commit = [1] * 5
    assert trips(send) == begin + set_isolation + sleep + send_call + commit + trips_more


def test_a_send_in_a_transaction_makes_one_trip_and_leaves_the_callers_settings() -> None:
    key("full", concurrency=0)

    def send() -> None:
        CallQueue.objects.send("noop", keys=["full"])

    def settings() -> tuple[str, ...]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, setting FROM pg_settings ORDER BY name")
            return tuple(cursor.fetchall())

    send()
    with transaction.atomic():
        before = settings()
        assert trips(send) == 1
        with pytest.raises(CallTooLarge), sql.together():
            raise CallTooLarge("args", "after what was asked")
        assert settings() == before


def test_a_send_that_is_published_at_once_runs_six_statements_in_four_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call with its note, after its settings; who is woken; its dispatch; the note of that, after settings."""
    monkeypatch.setattr(message, "send", lambda *_: None)
    key("ample", concurrency=1_000)

    def send() -> None:
        CallQueue.objects.send("noop", keys=["ample"])

    assert (trips(send), statements(send)) == (4, 3 + 3)
    assert not CallQueue.objects.filter(published_at=None).exists()


def test_a_trip_is_counted_for_each_wait() -> None:
    assert trips(lambda: [sql.now(), sql.now()]) == 2

    def ask_together() -> None:
        with sql.together():
            sql.ask("read_clock", object, {})
            sql.ask("read_clock", object, {})

    assert trips(ask_together) == 1
