"""Code whose functions are not installed yet: it keeps what it has, reports that once, and goes on when they are."""

import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.utils import timezone

from dispatcher import ending, engine, sql
from dispatcher.celery import heartbeat
from dispatcher.celery.periodic import PeriodicTasks
from dispatcher.engine import direct
from dispatcher.errors import DatabaseNotReady
from dispatcher.lifecycle import wake
from dispatcher.lifecycle.periodic_runs import TICK
from dispatcher.lifecycle.run import Returned
from dispatcher.migrations._functions import DropFunctions, InstallFunctions
from dispatcher.models import CallQueue, Note, Process
from dispatcher.sql import faults, functions
from dispatcher.states import State
from tests import releases
from tests.builders import HERE, committed, key, seen, states, ticket_of
from tests.races.audit import audit
from tests.races.lockstep import actors, eventually
from tests.releases import install, uninstall
from tests.steps.feeding import TAKER, take
from tests.steps.loops import process

pytestmark = [committed, pytest.mark.pooler, pytest.mark.django]


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Return what the log has of warnings and errors; afterwards the functions are there."""
    monkeypatch.setattr(faults, "_reported", {})
    with caplog.at_level(logging.WARNING, "dispatcher"):
        yield lambda: [
            each.getMessage()
            for each in caplog.records
            if each.name.startswith("dispatcher") and each.levelno >= logging.WARNING
        ]
    install()


def is_the_remedy(reports: Callable[[], list[str]]) -> bool:
    """Return whether the log has the remedy; fail if it has anything else, or has it twice."""
    found = reports()
    assert len(found) <= 1, "\n".join(found)
    assert all(functions.version() in each and each.endswith("Run: python manage.py migrate") for each in found)
    return bool(found)


def test_a_worker_keeps_the_end_of_its_call_and_goes_on_when_the_functions_are_there(
    direct: None, reports: Callable[[], list[str]]
) -> None:
    first, second = (CallQueue.objects.send("noop", queue="mail") for _ in range(2))
    with process() as worker:
        assert worker.begun() == first.id
        uninstall()
        worker.end("kept")
        eventually(lambda: is_the_remedy(reports))
        assert states([first]) == [State.ACTIVE]
        install()
        eventually(lambda: seen(first).result == "kept")
        assert worker.begun() == second.id
    assert is_the_remedy(reports)


def test_a_worker_that_starts_before_the_migration_starts_calls_after_it(
    direct: None, reports: Callable[[], list[str]]
) -> None:
    uninstall()
    with process() as worker:
        call = CallQueue.objects.send("noop", queue="mail")
        eventually(lambda: is_the_remedy(reports))
        install()
        assert worker.begun() == call.id
    assert is_the_remedy(reports)


def test_a_claim_and_an_end_of_the_broker_wait_for_the_functions(reports: Callable[[], list[str]]) -> None:
    key("api", concurrency=1)
    first, second = (seen(CallQueue.objects.send("noop", keys=["api"])) for _ in range(2))
    with actors(1) as (worker,):
        uninstall()
        running = worker.begin(engine.execute, first.id, ticket_of(first), lambda: uninstall() or "done")
        eventually(lambda: is_the_remedy(reports))
        assert states([first]) == [State.DISPATCHED]
        install()
        # Its task has removed them again, so that its end waits, too.
        eventually(lambda: seen(first).state == State.ACTIVE and not is_there("take"))
        install()
        assert running.result() == Returned(result="done")
    assert states([first, second]) == [State.COMPLETED, State.DISPATCHED]
    assert is_the_remedy(reports)
    audit(has_ended=False)


def is_there(name: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_proc WHERE proname = %s", [functions.installed_name(name)])
        return bool(cursor.rowcount)


def send_within_a_transaction() -> CallQueue:
    with transaction.atomic():
        return CallQueue.objects.send("noop", queue="mail")


@pytest.mark.parametrize("send", [partial(CallQueue.objects.send, "noop", queue="mail"), send_within_a_transaction])
@pytest.mark.parametrize("delivery", ["broker", "direct"])
def test_a_send_is_committed_and_a_tick_serves_it_when_the_functions_are_there(
    send: Callable[[], CallQueue], delivery: str, reports: Callable[[], list[str]], settings: Any
) -> None:
    settings.DISPATCHER = {"delivery": {"*": delivery}}
    Process.objects.create(id=uuid4(), queues=["mail"], idle_at=timezone.now())
    uninstall()
    calls = [send() for _ in range(3)]
    assert is_the_remedy(reports)
    assert states(calls) == [State.AVAILABLE] * 3
    assert Note.objects.exists()
    install()
    engine.tick(now=sql.now())
    if delivery == "broker":
        assert states(calls) == [State.DISPATCHED] * 3
    else:
        assert [each.call.id for each in take(3).starts] == [call.id for call in calls]
    assert is_the_remedy(reports)
    audit(has_ended=False)


def test_a_send_is_committed_though_the_refusal_of_its_wake_up_comes_early(
    reports: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*, calls: Collection[UUID]) -> sql.Asked[wake.Woken]:
        asked = wake_up(calls=calls)
        asked.rows()
        return asked

    wake_up = wake.ask
    monkeypatch.setattr(wake, "ask", ask)
    uninstall()
    call = CallQueue.objects.send("noop")
    assert states([call]) == [State.AVAILABLE]
    assert is_the_remedy(reports)


def test_the_dispenser_goes_on_by_itself(reports: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat.Identity, "worker", uuid4())  # put back after the test
    queues = SimpleNamespace(consume_from=["dispatcher"])
    worker: Any = SimpleNamespace(hostname=HERE.name, app=SimpleNamespace(amqp=SimpleNamespace(queues=queues)))
    step = PeriodicTasks(worker)
    uninstall()
    call = CallQueue.objects.send("noop")

    def tick() -> bool:
        step.ask(TICK)
        return states([call]) == [State.DISPATCHED]

    step.start(worker)
    try:
        for _ in range(3):
            tick()
        eventually(lambda: is_the_remedy(reports))
        install()
        eventually(tick)
    finally:
        step.stop(worker)
    assert is_the_remedy(reports)


# Releases that follow each other


@pytest.fixture
def following(
    reports: Callable[[], list[str]], direct: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Return the version of the release that follows, whose functions are installed, too."""
    version = releases.install_another(tmp_path, monkeypatch)
    yield version
    releases.run(DropFunctions(version))


def view_text() -> str:
    """Return what the view for autoscalers calls."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_viewdef('dispatcher_runnable'::regclass)")
        return str(cursor.fetchone()[0])


def test_a_release_back_leaves_no_function_behind_and_the_older_code_goes_on(following: str) -> None:
    key("api", concurrency=1)
    first, second = (CallQueue.objects.send("noop", queue="mail", keys=["api"]) for _ in range(2))
    with releases.acting_as(following):
        (start,) = take().starts
    assert following in releases.installed()
    assert following in view_text()
    releases.run(InstallFunctions(following), backwards=True)
    assert functions.version() in view_text()
    assert following not in releases.installed()
    taken = direct.step(TAKER, [start.ended(ending.completed("by the newer"))], room=1)
    assert (seen(first).result, [each.call.id for each in taken.starts]) == ("by the newer", [second.id])


def test_functions_are_dropped_two_releases_later_and_code_that_calls_them_reports_it(
    following: str, reports: Callable[[], list[str]]
) -> None:
    call = CallQueue.objects.send("noop", queue="mail")
    uninstall()
    with pytest.raises(DatabaseNotReady, match=r"Run: python manage\.py migrate"):
        take()
    with releases.acting_as(following):
        assert [each.call.id for each in take().starts] == [call.id]
