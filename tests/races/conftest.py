"""The races publish to a broker inside this process; no worker is about, unless a test plays one."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from project.celery import app as project_app
from tests.races.lockstep import Mailbox, app


@pytest.fixture(autouse=True)
def patient_passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pass wait for its key for as long as a test holds it up: the order of the steps is what is tried."""
    if "hasty_passes" not in request.fixturenames:
        monkeypatch.setattr("dispatcher.lifecycle.admit.KEY_WAIT", timedelta(minutes=1))


@pytest.fixture
def hasty_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a pass wait no longer than in production, and no other pass know which keys were waited for in vain."""
    monkeypatch.setattr("dispatcher.lifecycle.admit._Stuck.until", {})


@pytest.fixture(autouse=True)
def mailbox() -> Iterator[Mailbox]:
    """Return what the broker holds; empty at first."""
    app.set_current()
    mailbox = Mailbox()
    mailbox.empty()
    yield mailbox
    project_app.set_current()
