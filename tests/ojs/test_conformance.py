"""The test server of the public cases."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from django.db import connection
from django.test import RequestFactory

from dispatcher.models import CallQueue
from project.conformance.urls import reset
from tests import db_admin
from tests.races.lockstep import eventually

pytestmark = pytest.mark.django_db(transaction=True)

BLOCKED = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY (pg_blocking_pids(pid))"


def test_a_reset_that_a_tick_and_it_wait_for_is_made_again() -> None:
    CallQueue.objects.send("noop")

    def ask() -> int:
        try:
            return reset(RequestFactory().post("/")).status_code
        finally:
            connection.close()

    with closing(db_admin.connect()) as tick, ThreadPoolExecutor() as thread:
        with tick.transaction():
            # The server ends whose wait is checked first: the reset's.
            tick.execute("SET LOCAL deadlock_timeout = '1min'")
            tick.execute("SELECT FROM dispatcher_note")
            status = thread.submit(ask)
            eventually(lambda: db_admin.monitor().execute(BLOCKED, [tick.info.backend_pid]).fetchone() != (0,))
            tick.execute("SELECT FROM dispatcher_callqueue")
        assert status.result() == 204
    assert not CallQueue.objects.exists()
