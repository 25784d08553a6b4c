"""The steps publish to a broker inside this process; no worker is about, unless a test plays one."""

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.worker import state as worker_state
from django.db import connection
from kombu import Message

from project.celery import app as project_app


class Broker:
    """What was published, and can be taken."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def take(self, queue: str = "celery") -> list[Message]:
        """Take all messages out of a queue."""
        with self.app.connection_for_read() as connection:
            channel = connection.default_channel
            self.app.amqp.queues[queue](channel).declare()
            return list(iter(lambda: channel.basic_get(queue, no_ack=True), None))

    @staticmethod
    def go_down() -> None:
        """Publish to a broker that is down from now on."""
        make_app("gone", broker="redis://127.0.0.1:1/0").set_current()

    def come_back(self) -> None:
        """Publish to the broker that is there."""
        self.app.set_current()


def make_app(name: str, *, broker: str = "memory://", backend: str | None = None, **options: Any) -> Celery:
    """Make a Celery app; CELERY_BROKER_URL in the environment does not overrule its broker."""
    made = Celery(name, backend=backend, task_cls="dispatcher.celery:DispatchedTask")
    made.conf.update(broker_read_url=broker, broker_write_url=broker, **options)
    return made


app = make_app("steps")


@pytest.fixture(autouse=True)
def broker(request: pytest.FixtureRequest, settings: Any) -> Iterator[Broker]:
    """Return the broker, empty and at hand at first; there are no keys, and the settings are the defaults."""
    from dispatcher.lifecycle import publish  # noqa: PLC0415 -- there are no models when this file is read

    settings.DISPATCHER = {}
    # What was refused in a test before lets its queue rest for seconds.
    publish._Rest.until = 0  # noqa: SLF001 -- the state of a process, which tests share
    publish._Rest.queues.clear()  # noqa: SLF001 -- the same
    if request.node.get_closest_marker("django_db"):
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM dispatcher_ratelimitkey")
    app.set_current()
    broker = Broker(app)
    broker.take()
    yield broker
    project_app.set_current()


@pytest.fixture
def direct(db: None) -> Iterator[None]:
    """Let workers take the calls of the queue `mail` directly, and audit what they leave."""
    from dispatcher.models import Queue  # noqa: PLC0415 -- there are no models when this file is read
    from tests.races.audit import audit  # noqa: PLC0415 -- the same

    Queue.objects.create(name="mail", delivery="direct")
    yield
    audit(has_ended=False)


@pytest.fixture
def call() -> Any:
    """Send a call that takes all the room of its key."""
    from dispatcher.models import CallQueue  # noqa: PLC0415 -- there are no models when this file is read
    from tests.builders import key, seen  # noqa: PLC0415 -- the same

    key("api", concurrency=1)
    return seen(CallQueue.objects.send("noop", keys=["api"]))


@pytest.fixture
def nothing_ran() -> Iterator[None]:
    """Let the tasks of tests.steps.sample_tasks be done, and forget what they did before."""
    from tests.steps.sample_tasks import behaviours, ran  # noqa: PLC0415 -- there are no models when this file is read

    ran.clear()
    behaviours[:] = [lambda _: "done"]
    yield
    worker_state.reserved_requests.clear()
