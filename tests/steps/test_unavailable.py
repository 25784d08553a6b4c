"""Which errors of the database are worth another try: its SQLSTATE decides, as the server sends it."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from django.db import (
    DatabaseError,
    DataError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    connection,
    transaction,
)

from dispatcher import engine, sql
from dispatcher.celery import heartbeat
from dispatcher.lifecycle import recover, take
from dispatcher.lifecycle.run import Returned
from dispatcher.models import CallQueue, Slot
from dispatcher.states import State
from tests import db_admin
from tests.builders import committed, key, seen, states, ticket_of

pytestmark = [committed, pytest.mark.pooler, pytest.mark.django]

RAISE = "DO $$ BEGIN RAISE EXCEPTION 'as the server says it' USING ERRCODE = '{}'; END $$"


def error_of(statement: str) -> DatabaseError:
    """Return the error with which the server answers a statement."""
    with pytest.raises(DatabaseError) as raised, connection.cursor() as cursor:
        cursor.execute(statement)
    return raised.value


@pytest.fixture
def read_only() -> Iterator[Any]:
    """Give what makes the database read-only for new sessions and this one; afterwards it can be written again."""
    name = connection.settings_dict["NAME"]
    with db_admin.connect(dbname="postgres") as server:

        def begin() -> None:
            server.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
            execute("SET default_transaction_read_only = on")

        def end() -> None:
            server.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')

        yield begin, end
        end()
        connection.close()


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


UNAVAILABLE = [
    "08006",
    "08P01",
    "0A000",
    "25006",
    "25P02",
    "26000",
    "40001",
    "40P01",
    "42P05",
    "53100",
    "53300",
    "55P03",
    "57014",
    "57P01",
    "57P02",
    "57P03",
    "58030",
]
REFUSED = ["22001", "22P02", "22P05", "23505", "23514", "42601", "42P01", "42703", "54000"]
NEITHER = ["XX000", "38000", "P0001", "55000"]
"""A finish is tried again all the same."""


def test_the_server_s_sqlstate_shows_what_cannot_be_done_now_and_what_is_wrong_for_good() -> None:
    errors = {state: error_of(RAISE.format(state)) for state in [*UNAVAILABLE, *REFUSED, *NEITHER]}
    assert [state for state, error in errors.items() if sql.is_unavailable(error)] == UNAVAILABLE
    assert [state for state, error in errors.items() if sql.is_refused(error)] == REFUSED


@pytest.mark.parametrize(
    ("error", "is_unavailable"),
    [
        (OperationalError("server closed the connection"), True),
        (InterfaceError("connection already closed"), True),
        (ProgrammingError("can't adapt type"), False),
        (DataError("no such codec"), False),
        (ZeroDivisionError(), False),
    ],
    ids=repr,
)
def test_an_error_without_an_sqlstate_is_judged_by_its_class(error: Exception, *, is_unavailable: bool) -> None:
    assert sql.is_unavailable(error) is is_unavailable
    assert sql.is_refused(error) is not is_unavailable


@pytest.mark.session
def test_an_outcome_is_recorded_when_a_read_only_database_can_be_written_again(
    call: CallQueue, read_only: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, end = read_only
    tries: list[int] = []
    record = take.take

    def try_to_complete(*args: Any, **kwargs: Any) -> Any:
        tries.append(1)
        if len(tries) == 3:
            end()
            connection.close()
        return record(*args, **kwargs)

    monkeypatch.setattr(take, "take", try_to_complete)
    assert engine.execute(call.id, ticket_of(call), begin) == Returned(result=None)
    assert len(tries) == 3
    assert (seen(call).state, seen(call).attempt) == (State.COMPLETED, 1)


@pytest.mark.session
def test_an_outcome_is_recorded_though_the_server_has_lost_the_prepared_statement(settings: Any) -> None:
    settings.DISPATCHER = {"prepared_statements": True}
    first, second = (seen(CallQueue.objects.send("noop")) for _ in range(2))
    engine.execute(first.id, ticket_of(first), lambda: 1)
    # The driver must not see it.
    lose = partial(execute, "DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
    assert engine.execute(second.id, ticket_of(second), lose) == Returned(result=None)
    assert states([first, second]) == [State.COMPLETED] * 2


def test_an_outcome_whose_data_are_refused_is_not_tried_again(call: CallQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def refuse(*_: Any, **__: Any) -> None:
        tries.append(1)
        execute(RAISE.format("22P05"))

    monkeypatch.setattr(take, "take", refuse)
    with pytest.raises(DataError):
        engine.execute(call.id, ticket_of(call), lambda: None)
    assert len(tries) == 1


def test_an_outcome_outlasts_an_error_of_the_servers_own(call: CallQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []
    record = take.take

    def fail_once(*args: Any, **kwargs: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            execute(RAISE.format("XX000"))
        return record(*args, **kwargs)

    monkeypatch.setattr(take, "take", fail_once)
    assert engine.execute(call.id, ticket_of(call), lambda: 7) == Returned(result=7)
    assert (len(tries), states([call]), Slot.objects.count()) == (2, [State.COMPLETED], 0)


@pytest.mark.session
def test_a_heartbeat_that_meets_a_read_only_server_comes_back_on_another_connection() -> None:
    execute("SET default_transaction_read_only = on")
    assert not heartbeat.try_to("send its heartbeat", partial(key, "written"))
    assert heartbeat.try_to("send its heartbeat", partial(key, "written"))


@pytest.mark.session
def test_a_statement_outside_of_a_transaction_leaves_no_connection_to_an_unavailable_server() -> None:
    execute("SET default_transaction_read_only = on")
    with pytest.raises(DatabaseError):
        recover.judged_until()
    assert connection.connection is None
    recover.judged_until()


def test_a_transaction_of_the_engine_leaves_no_connection_to_an_unavailable_server() -> None:
    with pytest.raises(DatabaseError), sql.atomic():
        execute(RAISE.format("57P01"))
    assert connection.connection is None


@pytest.mark.session
def test_the_connection_of_a_callers_transaction_is_left_to_the_caller() -> None:
    execute("SET default_transaction_read_only = on")
    with transaction.atomic():
        kept = connection.connection
        with pytest.raises(DatabaseError), transaction.atomic():
            recover.judged_until()
        assert connection.connection is kept
    connection.close()
