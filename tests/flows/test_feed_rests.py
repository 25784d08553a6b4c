"""Flow: a worker with free processes beside a paused key waits; it does not ask the database again and again."""

import time

import pytest
from django.db import connection

from dispatcher import api
from dispatcher.models import Lane
from tests.flows import sample_tasks
from tests.flows.one_slot import ended, running, send, start
from tests.flows.processes import Processes
from tests.races.lockstep import concurrent, eventually

pytestmark = [
    concurrent,
    pytest.mark.usefixtures("one_slot"),
    pytest.mark.direct,
    pytest.mark.parametrize("delivery", ["direct"], indirect=True),
]

_MOST = 50
"""How many transactions a worker beside a paused key may make in a second, all threads together."""


def transactions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
        (count,) = cursor.fetchone()
    return int(count)


def test_a_worker_waits_while_a_key_is_paused_whose_slot_became_free(processes: Processes) -> None:
    start(processes, "-c", "2", env={"FLOWS_FALLBACK": "1"})
    holder = running(send(sample_tasks.echo_slowly, "holds", 1))
    send(sample_tasks.echo, "waits")
    eventually(Lane.objects.filter(parked_on__name="api").first)
    api.pause("api")
    ended(holder)
    time.sleep(3)
    before, began = transactions(), time.monotonic()
    time.sleep(3)
    assert (transactions() - before) / (time.monotonic() - began) < _MOST
