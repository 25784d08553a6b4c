"""Concurrent fetches: no worker gets what another has, no limit is exceeded, Celery's calls share the same budgets."""

import time
from collections import Counter
from datetime import timedelta
from functools import partial
from uuid import UUID

import pytest
from django.utils import timezone

from dispatcher.models import CallQueue, Queue, RateLimitKey
from dispatcher.ojs import fetch, pull_workers, worker_reports
from dispatcher.ojs.fetch import FetchRequest
from dispatcher.ojs.worker_reports import RejectedReport
from dispatcher.request import Call
from dispatcher.states import TERMINAL, State
from tests.races.audit import audit, most_at_once, spent_by_key
from tests.races.conftest import mailbox  # noqa: F401
from tests.races.lockstep import DEADLINE, POLL, assert_thaws, at_once, concurrent
from tests.races.traffic import dispense_and_work

pytestmark = concurrent


@pytest.fixture(autouse=True)
def _pulled(transactional_db: None) -> None:
    Queue.objects.create(name="mail", delivery="http")


def send(count: int, *keys: str, queue: str = "mail") -> None:
    CallQueue.objects.send_many([Call(task="noop", keys=keys, queue=queue)] * count)


def fetch_and_ack(count: int = 3) -> list[UUID]:
    """Be a worker until every call has ended; return what was fetched."""
    deadline = time.monotonic() + DEADLINE
    mine: list[UUID] = []
    while CallQueue.objects.exclude(state__in=TERMINAL).exists():
        fetched = fetch.fetch(FetchRequest(queues=["mail"], count=count))
        for call in fetched:
            assert not isinstance(worker_reports.ack(call.id, result=None, ticket=call.ticket), RejectedReport)
            mine.append(call.id)
        if not fetched:
            time.sleep(POLL)
        assert time.monotonic() < deadline, "the calls did not end in time"
    return mine


def test_eight_fetchers_get_every_call_once() -> None:
    send(200)
    fetched = Counter(call for mine in at_once(*[fetch_and_ack] * 8) for call in mine)
    assert (len(fetched), set(fetched.values())) == (200, {1})
    audit(is_fifo=True)


def test_no_fetcher_comes_back_empty_while_calls_are_there() -> None:
    send(65)
    # The first of all makes the lane ready: who comes beside it sees none.
    fetch.fetch(FetchRequest(queues=["mail"]))
    fetched = at_once(*[lambda: fetch.fetch(FetchRequest(queues=["mail"], count=4))] * 16)
    assert sorted(map(len, fetched)) == [4] * 16


def test_fetchers_and_celery_s_workers_share_a_concurrency() -> None:
    key = RateLimitKey.objects.declare("shared", concurrency=4)
    send(80, "shared")
    send(80, "shared", queue="celery")
    at_once(*[fetch_and_ack] * 4, *[dispense_and_work] * 4)
    assert most_at_once(spent_by_key()[key.id]) <= 4
    audit()


@pytest.mark.slow
def test_a_fetch_whose_process_is_frozen_keeps_no_call_locked_for_long() -> None:
    send(2)
    assert_thaws(partial(fetch.fetch, FetchRequest(queues=["mail"], count=2)), CallQueue.objects.all())
    assert len(fetch.fetch(FetchRequest(queues=["mail"], count=2))) == 2


@pytest.mark.slow
def test_a_recovery_of_fetched_calls_that_is_frozen_keeps_no_call_locked_for_long() -> None:
    send(1)
    fetch.fetch(FetchRequest(queues=["mail"]))
    assert_thaws(partial(pull_workers.reclaim, now=timezone.now() + timedelta(days=1)), CallQueue.objects.all())
    assert CallQueue.objects.get().state == State.ACTIVE
