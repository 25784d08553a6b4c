"""The flows run in real Celery workers, processes of their own, at the broker and the database of the tests.

What needs the settings is imported in the fixtures: when this file is read, the servers are not up yet.
"""

# ruff: noqa: PLC0415

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from pytest_django import DjangoDbBlocker, Settings

from project.services import Services

if TYPE_CHECKING:
    from tests.flows.processes import Processes

TRIES = 5


@pytest.fixture(scope="session", autouse=True)
def _emptying_beside_heartbeats() -> Iterator[None]:
    """Empty the tables again where a worker's heartbeat came in between, and the two waited for each other."""
    from django.core.management.base import CommandError
    from django.test import TransactionTestCase

    empty = TransactionTestCase._fixture_teardown  # noqa: SLF001 -- Django has no other place for it

    def empty_with_retries(*args: Any) -> None:
        for _ in range(TRIES - 1):
            try:
                return empty(*args)
            except CommandError:
                continue
        return empty(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty_with_retries)
        yield


@pytest.fixture(scope="package")
def processes(
    services: Services,
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator["Processes"]:
    """Give the processes of all flows.

    What it started is killed at the end, which is quicker than a farewell. A killed worker leaves its row, which other
    tests of this process would take for a live worker.
    """
    from celery.events.event import get_exchange
    from django.db import connection

    from dispatcher.models import Worker
    from project.processes import Stack
    from tests.flows.processes import Processes
    from tests.flows.sample_tasks import app
    from tests.flows.settings import DISPENSER_QUEUE, ELSEWHERE, QUEUE

    notes = tmp_path_factory.mktemp("flows") / "notes"
    env = {
        "DATABASE_URL": urlsplit(services.database_url)._replace(path=f"/{connection.settings_dict['NAME']}").geturl(),
        "CELERY_BROKER_URL": services.broker_url,
        "DJANGO_SETTINGS_MODULE": "tests.flows.settings",
        "FLOWS_QUEUE": QUEUE,
        "FLOWS_NOTES": str(notes),
        "NO_PROXY": "127.0.0.1",
        # Django's checks import the URLs and all behind them: half of the time in which a worker starts.
        "CELERY_SKIP_CHECKS": "true",
    }
    with Stack(services.run_dir, env=env) as stack:
        yield Processes(stack, notes)
        for name in list(stack.children):
            stack.kill(name)
    with django_db_blocker.unblock():
        Worker.objects.all().delete()
        connection.close()
    with app.connection_for_write() as broker:
        mailbox, channel = app.control.mailbox, broker.default_channel
        for name in {*app.amqp.queues, QUEUE, DISPENSER_QUEUE, ELSEWHERE}:
            queue = app.amqp.queues[name](channel)
            queue.delete()
            queue.exchange.delete()
        for exchange in (mailbox.exchange, mailbox.reply_exchange, get_exchange(broker, app.conf.event_exchange)):
            exchange(channel).delete()


@pytest.fixture
def worker(processes: "Processes") -> "Processes":
    """Have a worker up: the one of earlier flows, if it is alive."""
    child = processes.stack.children.get("worker")
    if child is None or not child.is_running():
        processes.start_worker()
        processes.stack.wait_ready()
    return processes


@pytest.fixture
def sending(settings: Settings) -> Iterator[None]:
    """Send as the workers receive."""
    from project.celery import app as project_app
    from tests.flows.sample_tasks import app
    from tests.flows.settings import CONSTANTS, DISPATCHER

    settings.DISPATCHER = DISPATCHER | CONSTANTS
    app.set_current()
    yield
    project_app.set_current()


@pytest.fixture
def ticking(sending: None) -> Iterator[None]:
    """Tick and recover as beat and the dispenser do, in threads."""
    from dispatcher import engine
    from tests.flows.processes import every

    with every(0.2, engine.tick), every(0.3, engine.recover):
        yield


@pytest.fixture
def delivery(request: pytest.FixtureRequest, sending: None) -> str:
    """Give the queue of the tests a delivery: the broker's, or that which the test names."""
    from dispatcher.models import Queue
    from tests.flows.settings import QUEUE

    named = str(getattr(request, "param", "broker"))
    Queue.objects.update_or_create(name=QUEUE, defaults={"delivery": named})
    return named


@pytest.fixture
def one_slot(processes: "Processes", delivery: str) -> Iterator[None]:
    """Begin and end without workers, and with a key that has one slot."""
    from dispatcher.models import RateLimitKey
    from tests.races.audit import audit

    processes.kill_workers()
    RateLimitKey.objects.declare("api", concurrency=1)
    yield
    processes.kill_workers()
    audit(has_ended=False)
