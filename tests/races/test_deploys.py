"""A rolling deploy: code of two releases, each with functions of its own, works on one key at once."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import TypeVar
from uuid import UUID, uuid4

import pytest

from dispatcher import engine
from dispatcher.ending import completed
from dispatcher.engine import direct
from dispatcher.lifecycle import heartbeat
from dispatcher.lifecycle.finish import Ended
from dispatcher.lifecycle.take import Start, Taker
from dispatcher.migrations._functions import DropFunctions
from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.sql import functions
from dispatcher.states import TERMINAL
from tests import releases
from tests.builders import HERE
from tests.races.audit import audit
from tests.races.lockstep import DEADLINE, POLL, at_once, concurrent
from tests.races.traffic import execute, work

pytestmark = [concurrent, pytest.mark.server, pytest.mark.pooler]

T = TypeVar("T")

EACH = 20
"""How many calls each sender sends to each queue."""


@pytest.fixture
def another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return the version of another release, whose functions are installed, too."""
    version = releases.install_another(tmp_path, monkeypatch)
    yield version
    releases.run(DropFunctions(version))


def test_two_releases_side_by_side_break_no_limit_and_lose_nothing(another: str) -> None:
    Queue.objects.create(name="mail", delivery="direct")
    RateLimitKey.objects.declare("api", concurrency=4, rate=(60, 1))
    versions = [functions.version(), another]
    at_once(*(partial(act, version, partial(send, queue)) for queue in ("mail", "celery") for version in versions))
    jobs = [partial(job, Barrier(2)) for job in (take_and_end, tick_and_execute)]
    ran = at_once(*(partial(act, version, job) for job in jobs for version in versions))
    assert all(ran)
    assert CallQueue.objects.count() == 4 * EACH
    assert set(CallQueue.objects.values_list("attempt", flat=True)) == {1}
    audit()


def act(version: str, job: Callable[[], T]) -> T:
    with releases.acting_as(version):
        return job()


def send(queue: str) -> None:
    for _ in range(EACH):
        CallQueue.objects.send("noop", queue=queue, keys=["api"])


def meet_once(barrier: Barrier) -> Callable[[], None]:
    """Return what waits the first time until the other release has a call, too: neither runs them all."""
    left = [barrier]

    def meet() -> None:
        if left:
            left.pop().wait(DEADLINE)

    return meet


def tick_and_execute(barrier: Barrier) -> int:
    """Be a dispenser, and a worker of the broker's queue, until every call has ended; return how many this one ran."""
    meet = meet_once(barrier)

    def run(call: UUID, ticket: UUID) -> None:
        meet()
        execute(call, ticket)

    return work(engine.tick, run=run)


def take_and_end(barrier: Barrier) -> int:
    """Be a worker of the direct queue until every call has ended; return how many this one has ended."""
    meet = meet_once(barrier)
    worker = replace(HERE, id=uuid4(), queues=["mail"], tasks=["noop"])
    heartbeat.record(worker, [])
    taker = Taker(worker=worker.id, queues=["mail"], tasks=["noop"])
    held: dict[UUID, Ended] = {}
    ran, deadline = 0, time.monotonic() + DEADLINE
    while held or CallQueue.objects.exclude(state__in=TERMINAL).exists():
        taken = direct.step(taker, [*held.values()], room=1)
        if taken.starts:
            meet()
        ran += len(taken.ended)
        held = {call: ended for call, ended in held.items() if call in taken.locked} | dict(map(end, taken.starts))
        time.sleep(POLL)
        assert time.monotonic() < deadline, "the calls did not end in time"
    return ran


def end(start: Start) -> tuple[UUID, Ended]:
    return start.call.id, start.ended(completed(None))
