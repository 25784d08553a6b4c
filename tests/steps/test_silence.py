"""A broker or a database that does not answer: no refusal, no reset, packets that are dropped."""

import os
from collections.abc import Iterator
from functools import partial
from threading import Timer
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import OperationalError, connection

from dispatcher import engine
from dispatcher.lifecycle import publish
from dispatcher.models import CallQueue
from dispatcher.states import State
from project.services import Services
from tests.builders import admitted, committed, seen, ticket_of
from tests.steps.conftest import make_app
from trials.chaos.proxy import Proxy

pytestmark = [committed, pytest.mark.slow]

BOUND = 2.0
"""How long publishing may wait for one answer."""
SLACK = 1.0
QUEUE = f"silence-{os.getpid()}"


@pytest.fixture
def way(services: Services) -> Iterator[Proxy]:
    """Return a way to the broker that can go silent; it is used with Celery's own settings."""
    proxy = Proxy(services.broker_url)
    app = make_app("silent", broker=proxy.url)
    app.set_current()
    yield proxy
    proxy.close()
    with make_app("cleaner", broker=services.broker_url).connection_for_write() as broker:
        app.amqp.queues[QUEUE](broker.default_channel).delete()


@pytest.fixture(autouse=True)
def _impatient(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DISPATCHER = {"publish_pause": 0}
    monkeypatch.setattr(publish._Rest, "until", 0.0)  # noqa: SLF001 -- put back after the test


def taken(call: CallQueue) -> tuple[int, float]:
    """Publish a call; return how many the broker took, and in what time."""
    begun = monotonic()
    return publish.publish([call]), monotonic() - begun


@pytest.mark.parametrize("silence", [Proxy.silence, Proxy.drop], ids=["frozen", "cut off"])
@pytest.mark.parametrize("is_connected", [False, True], ids=["before it is connected", "after"])
def test_publishing_gives_up_a_broker_that_does_not_answer(way: Proxy, silence: Any, *, is_connected: bool) -> None:
    if is_connected:
        count, _ = taken(admitted(queue=QUEUE))
        assert count == 1
    silence(way)
    for _ in range(2):
        call = admitted(queue=QUEUE)
        count, seconds = taken(call)
        assert count == 0
        assert seconds < BOUND + SLACK
        assert seen(call).published_at is None
    way.pick_up()
    way.resume()
    assert taken(call)[0] == 1


@pytest.mark.smoke
def test_a_send_ends_in_time_where_the_broker_does_not_answer(way: Proxy, settings: Any) -> None:
    settings.DISPATCHER = {"publish_pause": 60}
    way.silence()
    begun = monotonic()
    calls = [CallQueue.objects.send("noop", queue=QUEUE) for _ in range(20)]
    assert monotonic() - begun < BOUND + 2 * SLACK
    assert {seen(call).state for call in calls} == {State.DISPATCHED}


# The database


@pytest.fixture
def wire(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Have this process reach the database by a wire that can be cut, with time limits for its connections."""
    proxy = Proxy(services.database_url)
    options = {"connect_timeout": 2, "tcp_user_timeout": 500, "keepalives_idle": 1, "keepalives_interval": 1}
    url = urlsplit(proxy.url)
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "HOST", url.hostname)
    monkeypatch.setitem(connection.settings_dict, "PORT", url.port)
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {**connection.settings_dict["OPTIONS"], **options})
    yield proxy
    proxy.pick_up()
    connection.close()
    proxy.close()


@pytest.mark.parametrize("is_cut_while_it_runs", [False, True], ids=["the claim", "the finish"])
def test_a_wire_that_is_cut_for_seconds_costs_a_call_only_that_time(
    wire: Proxy, settings: Any, *, is_cut_while_it_runs: bool
) -> None:
    settings.DISPATCHER = {"patience": 30}
    call = admitted(queue=QUEUE)
    heal = Timer(4, wire.pick_up)

    def cut() -> None:
        wire.drop()
        heal.start()

    if not is_cut_while_it_runs:
        cut()
    begun = monotonic()
    outcome = engine.execute(call.id, ticket_of(call), cut if is_cut_while_it_runs else lambda: None)
    assert outcome is not None
    assert 3 < monotonic() - begun < 20
    heal.join()
    assert (seen(call).state, seen(call).attempt) == (State.COMPLETED, 1)


def test_patience_bounds_a_wire_that_stays_cut(wire: Proxy, settings: Any) -> None:
    settings.DISPATCHER = {"patience": 3}
    call = admitted(queue=QUEUE)
    wire.drop()
    begun = monotonic()
    with pytest.raises(OperationalError):
        engine.execute(call.id, ticket_of(call), partial(pytest.fail, "it was never claimed"))
    assert monotonic() - begun < 12
