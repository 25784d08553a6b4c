"""Requests that wait over HTTP: what they hold, how many there may be, and when they end."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from threading import Thread
from typing import Any

import pytest
from django.db import connection, connections
from pytest_django import Settings

from dispatcher.models import CallQueue, Process, Queue, RateLimitKey
from dispatcher.ojs import long_poll
from dispatcher.ojs.auth import make_token
from dispatcher.ojs.long_poll import WAITERS
from tests.ojs.http_client import Api
from tests.races.lockstep import eventually, holding

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.django]

LONG_MS = 20_000
DEADLINE_S = 20.0


@pytest.fixture(autouse=True)
def _pulled(open_http: None, settings: Settings) -> None:
    del open_http
    Queue.objects.create(name="default", delivery="http")
    settings.DISPATCHER = {**settings.DISPATCHER, "http_waiters": 8}


@contextmanager
def waiting(*fetches: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run these in threads of their own, and give their results at the end of the block; it begins when all wait."""
    results: list[Any] = []

    def run(fetch: Callable[[], Any]) -> Any:
        try:
            return fetch()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(fetches)) as threads:
        futures = [threads.submit(run, fetch) for fetch in fetches]
        eventually(lambda: len(WAITERS) >= len(fetches), within=DEADLINE_S)
        yield results
        results += [future.result(DEADLINE_S) for future in futures]


def fetch() -> list[dict[str, Any]]:
    return Api().fetch(wait_ms=LONG_MS)


def sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        (count,) = cursor.fetchone()
    return int(count)


def test_fetches_that_wait_share_one_connection_and_get_what_is_sent() -> None:
    before = sessions()
    with waiting(*[fetch] * 6) as fetched:
        # Not each of them holds a connection.
        eventually(lambda: sessions() <= before + 1, within=DEADLINE_S)
        api = Api()
        sent = {api.push()["id"] for _ in range(6)}
    assert {job["id"] for jobs in fetched for job in jobs} == sent


def test_a_fetch_above_the_bounds_is_answered_at_once_with_what_there_is(settings: Settings) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "http_waiters": 1}
    api = Api()
    with waiting(fetch):
        assert api.fetch(wait_ms=LONG_MS) == []
        assert api.last.headers["Retry-After"] == "1"
        assert api.get("/health")["status"] == "ok"
        job = api.push()["id"]
    api.fetch(wait_ms=1)
    assert "Retry-After" not in api.last.headers
    assert CallQueue.objects.get(id=job).state == "active"


def test_one_token_can_not_take_every_place(settings: Settings) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "http_waiters_per_token": 1}
    one, two = (Api(Authorization=f"Bearer {make_token(name, ['fetch'])}") for name in ("one", "two"))
    more = Api(**one.headers)
    with waiting(lambda: one.fetch(wait_ms=LONG_MS), lambda: two.fetch(wait_ms=LONG_MS)):
        more.fetch(wait_ms=LONG_MS)
        assert more.last.headers["Retry-After"] == "1"
        for _ in range(2):
            Api().push()


def test_no_request_waits_in_a_server_without_threads() -> None:
    api = Api()
    api.client.defaults["wsgi.multithread"] = False
    assert api.fetch(wait_ms=LONG_MS) == []
    assert api.last.headers["Retry-After"] == "1"


@pytest.mark.parametrize("options", [{"scheduled_at": "+PT1S"}, {"retry": {"initial_interval": "PT1S"}}])
def test_what_falls_due_is_fetched_without_a_tick(options: dict[str, Any]) -> None:
    api = Api()
    job = api.push(options=options)["id"]
    if "retry" in options:
        api.fetch()
        api.post("/workers/nack", {"job_id": job, "error": {"message": "no"}})
    assert api.fetch() == []
    CallQueue.objects.update(scheduled_at=CallQueue.objects.get().scheduled_at - timedelta(seconds=5))
    assert [each["id"] for each in api.fetch()] == [job]


def test_a_fetch_that_waits_gets_what_falls_due() -> None:
    Api().push(options={"scheduled_at": "+PT1S"})
    assert len(fetch()) == 1


def test_a_fetch_that_waits_is_answered_when_a_key_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its own trip has parked the lane, or that of another, and though it does not look by itself."""
    monkeypatch.setattr("dispatcher.ojs.fetch._LOOKS_S", (LONG_MS, LONG_MS))
    RateLimitKey.objects.declare("window", rate=(1, 1))
    api = Api()
    for _ in range(3):
        api.push(options={"keys": ["window"]})
    assert [len(fetch()), len(fetch()), len(api.fetch()), len(fetch())] == [1, 1, 0, 1]


def test_a_fetch_does_not_wait_for_who_has_locked_its_mark() -> None:
    with ExitStack() as user:
        with WAITERS.waiting("a", ["default"], lambda: True) as waiter:
            user.enter_context(holding("SELECT FROM dispatcher_process FOR UPDATE"))
        assert waiter.is_woken, "who has locked it is taking it, maybe"


def unstarted(_: Thread) -> None:
    message = "can't start new thread"
    raise RuntimeError(message)


@pytest.mark.parametrize("broken", [(Thread, "start", unstarted), (long_poll.Waiters, "_watch", lambda _: None)])
def test_who_waits_after_the_thread_that_looks_was_lost_is_woken(
    broken: tuple[type, str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiters = long_poll.Waiters()
    with monkeypatch.context() as patch, suppress(RuntimeError):
        patch.setattr(*broken)
        with waiters.waiting("a", ["default"], lambda: True) as waiter:
            waiter.wait(0.1)
    assert len(waiters) == 0
    assert not Process.objects.exists()
    with waiters.waiting("a", ["default"], lambda: True) as waiter:
        Api().push()
        waiter.wait(DEADLINE_S)
        assert waiter.has_ended.is_set()


def test_whose_mark_is_gone_looks_again() -> None:
    with long_poll.WAITERS.waiting("a", ["default"], lambda: True) as waiter:
        Process.objects.all().delete()
        waiter.wait(DEADLINE_S)
        assert waiter.has_ended.is_set()


def test_a_process_forked_from_one_whose_requests_wait_has_none_that_do(settings: Settings) -> None:
    settings.DISPATCHER = {**settings.DISPATCHER, "http_waiters": 1}
    with waiting(fetch):
        if not (child := os.fork()):
            with WAITERS.reserve("another") as has_place:
                os._exit(0 if has_place and not len(WAITERS) else 1)
        _, status = os.waitpid(child, 0)
        Api().push()
    assert status == 0


def test_a_push_that_waits_for_room_takes_a_place(settings: Settings) -> None:
    Queue.objects.filter(name="default").update(max_depth=1, on_full="block")
    settings.DISPATCHER = {**settings.DISPATCHER, "http_waiters": 0}
    api = Api()
    api.push()
    api.post("/jobs", {"type": "a", "args": []}, status=429, **{"OJS-Block-Timeout": "20"})
