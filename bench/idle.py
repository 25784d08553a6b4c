"""What one send causes while many workers of its queue are idle: one is woken, and the others do nothing.

One of them is a real worker. The others are a row each, as an idle process has it, and one connection that listens for
all of them and holds the locks of their sessions, since a server may not take a hundred more. Senders choose a process
of the real one, which has been idle for the longest; what reaches the channels of all is counted.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from uuid import UUID

import psycopg
import uuid_utils.compat as uuid7
from django.db import connection

from bench import feeding, fixtures, running
from bench.figures import Bench, Bound, Figure
from bench.tasks import nothing
from dispatcher import sql
from dispatcher.lifecycle import heartbeat, wake
from dispatcher.models import CallQueue, Process

WORKERS = 100
SENDS = 20
PACE_S = 0.5
"""How far sends are apart: the worker is idle again."""
FLUSH_S = 12.0
"""How long until the server's statistics have what a session did before it became idle."""


def idle(bench: Bench) -> Iterator[Figure]:
    """Count what a send causes with 100 idle workers, and with one."""
    with feeding.worker(bench):
        _caused()
        alone, _ = _caused()
        with _idle_workers(WORKERS - 1) as listener:
            among, woken = _caused(listener)
    figure = Figure(
        name=f"direct: transactions from a send to the worker's rest, {WORKERS} idle workers against one",
        ours=among,
        reference=alone,
        unit="transactions",
        side=Bound.AT_MOST,
        bound=1.2,
    )
    yield figure
    yield Figure(
        name=f"direct: workers woken by a send, of {WORKERS}",
        ours=woken,
        reference=1,
        unit="workers",
        side=Bound.AT_MOST,
        bound=1.0,
    )


def _caused(listener: "psycopg.Connection[tuple[object, ...]] | None" = None) -> tuple[float, float]:
    """Return the transactions that each send causes to its end, and the notifications of workers.

    By the server's statistics; what goes on without a send is taken off.
    """
    time.sleep(FLUSH_S)
    start = feeding.committed()
    time.sleep(SENDS * PACE_S + FLUSH_S)
    quiet = feeding.committed()
    for _ in range(SENDS):
        CallQueue.objects.send(nothing)
        time.sleep(PACE_S)
    running.wait_for(running.count_ended, CallQueue.objects.count())
    time.sleep(FLUSH_S)
    end = feeding.committed()
    woken = len(list(listener.notifies(timeout=0))) if listener is not None else 0
    return ((end - quiet) - (quiet - start)) / SENDS, woken / SENDS


@contextmanager
def _idle_workers(count: int) -> "Iterator[psycopg.Connection[tuple[object, ...]]]":
    """Have so many more idle workers, which have been so for less long than the real one; yield what listens."""
    workers = [uuid7.uuid7() for _ in range(count)]
    params = connection.get_connection_params()
    known = {name: params[name] for name in ("host", "port", "dbname", "user", "password") if params.get(name)}
    with psycopg.connect(**known, autocommit=True) as listener:
        for worker in workers:
            listener.execute("SELECT pg_advisory_lock(hashtextextended(%s::uuid::text, 0))", [worker])
            _mark_idle(worker)
        for process in Process.objects.values_list("id", flat=True):
            listener.execute(f"LISTEN {wake.channel(process)}")
        yield listener
    Process.objects.filter(worker_id__in=workers).delete()


def _mark_idle(worker: UUID) -> None:
    """Register a worker with a process of the same id, and let it be idle since later than any real one."""
    here = heartbeat.WorkerInfo(
        id=worker,
        name=f"idle-{worker}",
        host="bench",
        pid=1,
        pool="prefork",
        processes=2,
        queues=[fixtures.QUEUE],
        tasks=[nothing.name],
    )
    heartbeat.record(here, [])
    idle_at = sql.now() + timedelta(hours=1)
    Process.objects.create(id=worker, worker_id=worker, queues=[fixtures.QUEUE], idle_at=idle_at)
