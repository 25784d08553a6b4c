"""What the soak plays on: the keys, and a standing backlog of calls that closed and slow keys hold back."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from os import getpid
from socket import gethostname

import uuid_utils.compat as uuid7
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.lifecycle import heartbeat, send
from dispatcher.lifecycle.take import Taker, take
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call

QUEUE = "soak"
PROBE_QUEUE = "soak-probe"
"""The queue of the calls that the measured trips start. It is direct; the worker takes those of the other one."""
TASK = "soak.nothing"
TENANTS = 20
PROBES = 5
"""Lanes that each measured trip serves, each under a key of its own and under `api`, as all that moves."""

_BATCH = 5_000
_SHARES = {"paused": 0.5, "full": 0.25, "crawl": 0.05, "later": 0.2}
"""Which part of the backlog waits for what."""
_PAYLOAD = {"order": "O-2030-000001", "customer": 4_711, "lines": [{"sku": "A-100", "count": 2, "price": "9.90"}] * 3}
"""What a call carries: some 200 bytes, as many do."""


def declare_keys() -> None:
    """Make the keys of all that moves and of all that waits."""
    declare = RateLimitKey.objects.declare
    declare("api", concurrency=500, rate=(100_000, "PT10S"))
    declare("narrow", concurrency=2)
    declare("slow", throttle=(20, "PT1S"))
    declare("crawl", throttle=(1, "PT1H"))
    declare("paused")
    api.pause("paused")
    declare("full", concurrency=1)
    for name in (*_named("tenant", TENANTS), *_named("probe", PROBES)):
        declare(name, concurrency=100)


def fill_full(here: heartbeat.WorkerInfo) -> heartbeat.ReservedCall:
    """Let one call take all the room of `full` for as long as this worker's heart beats."""
    write([replace(call("full"), queue=PROBE_QUEUE)])
    (start,) = take(taker(here), room=1).starts
    return start.call.id, start.call.ticket


def let_wait(backlog: int, here: heartbeat.WorkerInfo, full: heartbeat.ReservedCall) -> None:
    """Write the standing backlog, and keep the call that holds the room of `full` meanwhile."""
    calls = _backlog(backlog)
    while batch := list(islice(calls, _BATCH)):
        keep(here, full)
        write(batch)
        engine.dispense(trips=1)


def worker(name: str) -> heartbeat.WorkerInfo:
    """Return a worker of the measured trips; it lives from its first heartbeat on."""
    queues = [PROBE_QUEUE]
    return heartbeat.WorkerInfo(
        id=uuid7.uuid7(), name=name, host=gethostname(), pid=getpid(), pool="threads", processes=1, queues=queues
    )


def taker(here: heartbeat.WorkerInfo) -> Taker:
    """Return a worker as the measured trips know it."""
    return Taker(worker=here.id, queues=[PROBE_QUEUE], tasks=[TASK])


def keep(here: heartbeat.WorkerInfo, full: heartbeat.ReservedCall) -> None:
    """Beat for the call that holds the room of `full`. Raises RuntimeError if it has lost its ticket."""
    if not heartbeat.record(here, [full]).slots:
        message = "the call that holds the room of `full` was put back: its backlog is not standing any more"
        raise RuntimeError(message)


def write(calls: list[Call]) -> list[CallQueue]:
    """Write calls without a look at what may go."""
    return send.write([send.draft(each, task=TASK, queue=each.queue or QUEUE) for each in calls]).calls


def probe_calls(each: int) -> list[Call]:
    """Return so many calls for each of the lanes that the measured trips serve."""
    return [replace(call("api", name), queue=PROBE_QUEUE) for name in _named("probe", PROBES) for _ in range(each)]


def call(*keys: str) -> Call:
    """Return a call that spends these keys."""
    return Call(task=TASK, kwargs=_PAYLOAD, queue=QUEUE, keys=keys)


def _backlog(backlog: int) -> Iterator[Call]:
    later = timezone.now() + timedelta(days=1)
    for name, share in _SHARES.items():
        for number in range(round(backlog * share)):
            tenant = f"tenant:{number % TENANTS}"
            if name == "later":
                yield replace(call("api", tenant), scheduled_at=later)
            else:
                yield call(name, tenant)


def _named(kind: str, count: int) -> list[str]:
    return [f"{kind}:{number}" for number in range(count)]
