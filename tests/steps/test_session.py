"""The connection of a process's trips: what is left of it when a statement lost it, or made another one."""

from time import monotonic
from uuid import uuid4

import pytest
from django.db import OperationalError, connection
from pytest_django import Settings

from dispatcher import sql
from dispatcher.worker.session import LOOK_S, Session
from tests.builders import HERE
from tests.races.lockstep import concurrent

pytestmark = [concurrent, pytest.mark.server]


def lose(session: Session) -> None:
    """Have the server end its connection, and a statement notice it, as one after the commit of a trip does."""
    with session.used():
        pid = sql.connection().connection.info.backend_pid
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
    with session.used(), pytest.raises(OperationalError):
        sql.now()


def test_a_process_whose_connection_a_statement_lost_opens_another_one() -> None:
    session = Session(uuid4())
    session.open([])
    lose(session)
    assert not session.take_woken()
    assert not session.is_open
    assert not session.may_rest
    session.close()


def test_a_process_whose_connection_does_not_listen_opens_another_one() -> None:
    session = Session(HERE.id)
    session.open([])
    assert session.is_open
    lose(session)
    with session.used():
        sql.now()
    assert not session.is_open
    session.open([])
    assert session.may_rest
    session.close()


def test_a_process_ends_the_session_that_a_cut_network_has_left_it_on_the_server() -> None:
    session = Session(HERE.id)
    session.open([])
    with session.used():
        # To the server it is there: it does not learn that no one reads what it sends.
        left = sql.connection().connection
        sql.connection().connection = None
    try:
        session.open([])
        assert session.may_rest
    finally:
        session.close()
        left.close()


@pytest.mark.pooler
def test_a_process_that_senders_can_not_wake_rests_between_its_looks(settings: Settings) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "prepared_statements": False}
    session = Session(HERE.id)
    session.open([])
    assert (session.may_rest, session.look_s(is_marked=False)) == (False, LOOK_S)
    session.close()


def test_an_interrupt_ends_one_pause_of_a_process_without_a_database() -> None:
    session = Session(HERE.id)
    session.interrupt()
    began = monotonic()
    session.sleep_for(60)
    assert monotonic() - began < 60
    began = monotonic()
    session.sleep_for(0.1)
    assert monotonic() - began >= 0.1, "each try would follow the one before at once"


def test_a_process_is_woken_by_a_notification_that_comes_with_the_answer_of_a_statement() -> None:
    session = Session(HERE.id)
    session.open([])
    sql.fetch("notify_workers", str, {"workers": [session.process]})
    with session.used():
        sql.now()
    assert session.take_woken()
    assert not session.take_woken()
    session.close()
