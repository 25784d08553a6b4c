"""Flow: a worker with free processes beside a paused key waits; it does not ask the database again and again."""

import time

from django.db import transaction

from dispatcher import api
from dispatcher.models import LaneSite, RateLimitKey
from tests import db_admin
from tests.flows import sample_tasks
from tests.flows.one_slot import DIRECT, ended, running, send, start
from tests.flows.processes import Processes
from tests.races.lockstep import eventually

pytestmark = DIRECT

SELDOM = {"FLOWS_FALLBACK": "1", "FLOWS_HEARTBEAT": "5"}
"""A worker that looks by itself seldom: ticks alone make transactions, about 25 a second in the flows."""
_MOST = 50
"""How many transactions a worker that rests may make in a second, all threads together; one that never does makes
hundreds."""
_MOST_WOKEN = 120
"""The same where each tick finds a lane that is ready and wakes the worker: the flows have short ticks."""


_COUNTED_S = 12
"""For how long they are counted. Each connection reports its own once a second: over three seconds the count would
err by a third, and a rate of 95 be one of 127."""
_COUNT = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


def transactions_a_second() -> float:
    counts, times = [], []
    for wait in (0, _COUNTED_S):
        time.sleep(wait)
        with db_admin.connect() as other:
            counts += [int(count) for (count,) in other.execute(_COUNT)]
        times.append(time.monotonic())
    return (counts[1] - counts[0]) / (times[1] - times[0])


def test_a_worker_waits_while_a_key_is_paused_whose_slot_became_free(processes: Processes) -> None:
    start(processes, "-c", "2", env=SELDOM)
    holder = running(send(sample_tasks.echo_slowly, "holds", 1))
    send(sample_tasks.echo, "waits")
    eventually(LaneSite.objects.filter(place__gt=0).exists)
    api.pause("api")
    ended(holder)
    time.sleep(3)
    assert transactions_a_second() < _MOST


def test_a_worker_waits_while_a_transaction_cancels_the_last_call_of_its_lane(processes: Processes) -> None:
    start(processes, "-c", "2", env=SELDOM)
    ended(send(sample_tasks.echo, "makes the lane", keys=[]))
    RateLimitKey.objects.filter(name="api").update(is_paused=True)
    call = send(sample_tasks.echo, "waits")
    eventually(LaneSite.objects.filter(place__gt=0).exists)
    with transaction.atomic():
        api.cancel([call.id])
        with db_admin.connect() as other:
            other.execute("UPDATE dispatcher_ratelimitkey SET is_paused = false")
            other.execute("UPDATE dispatcher_lanesite SET place = 0 WHERE place > 0")
        time.sleep(7)
        assert transactions_a_second() < _MOST_WOKEN
