"""How the pool of a worker is used."""

import os
from collections.abc import Iterator
from time import monotonic
from unittest.mock import Mock
from uuid import uuid4

import pytest
from celery.concurrency.solo import TaskPool
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from dispatcher.worker.loop import Loop, Options
from dispatcher.worker.pool import Pool

OTHER_EVENT_S = 6


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Give the event loop of a worker whose broker sends nothing, and that has nothing to do for long."""
    monkeypatch.setattr(Loop, "one_by_one", None)
    made, (read, write) = Hub(timer=Timer(max_interval=OTHER_EVENT_S)), os.pipe()
    made.add_reader(read, Mock())
    made.call_later(OTHER_EVENT_S, Mock())
    yield made
    made.close()
    os.close(read)
    os.close(write)


def test_what_a_message_leaves_to_a_solo_workers_event_loop_waits_for_no_other_event(hub: Hub) -> None:
    pool, accept = TaskPool(), Mock(side_effect=lambda *_: hub.call_soon(Mock()))
    Pool(Options(worker=uuid4(), hostname="here", tasks=[], is_forked=False), Mock()).attach(Mock(hub=hub, pool=pool))
    hub.call_soon(lambda: pool.apply_async(Mock(), callback=Mock(), accept_callback=accept))
    began = monotonic()
    hub.run_once()
    assert accept.called
    assert monotonic() - began < OTHER_EVENT_S / 2
