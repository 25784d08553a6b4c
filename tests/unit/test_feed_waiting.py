"""The waits of a feed, without a database."""

import os
import resource
from collections.abc import Iterator
from time import monotonic
from uuid import uuid4

import pytest

from dispatcher import sql
from dispatcher.celery.feed_waiting import Waiting

MOST = 1_024
"""How many descriptors select() knows."""


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * MOST), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(MOST)]
    yield
    for descriptor in opened:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    waiting = Waiting(uuid4())
    yield waiting
    waiting.close()


def test_a_wait_ends_when_it_is_due(waiting: Waiting) -> None:
    due = monotonic() + 0.01
    waiting.wait(due, is_idle=False)
    assert monotonic() >= due


def test_a_notification_that_was_read_with_the_answer_of_a_statement_ends_the_wait(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent, other = os.pipe()
    monkeypatch.setattr(sql, "listen", lambda *_: silent)
    monkeypatch.setattr(sql, "read_notifications", lambda: 1)
    waiting.listen()
    due = monotonic() + 60
    waiting.wait(due, is_idle=True)
    assert (waiting.is_woken, monotonic() < due) == (True, True)
    for descriptor in (silent, other):
        os.close(descriptor)


def test_a_wait_is_ended_from_outside_in_a_worker_with_many_pipes(many_files: None) -> None:
    waiting = Waiting(uuid4())
    waiting.wake()
    due = monotonic() + 60
    waiting.wait(due, is_idle=False)
    assert monotonic() < due
    waiting.close()
