"""Every statement goes by itself, so that it can be a step; and the broker is away, unless a test wants it."""

import math
from datetime import timedelta

import pytest
from pytest_django import Settings

from tests.races.conftest import mailbox  # noqa: F401


@pytest.fixture(autouse=True)
def one_by_one(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send no statements together, try no claim again, and leave what is dispatched to who publishes it later."""
    settings.DISPATCHER = {"pipeline": False}
    monkeypatch.setattr("dispatcher.lifecycle.publish._Rest.until", math.inf)
    monkeypatch.setattr("dispatcher.lifecycle.claim.LOCK_WAIT", timedelta(0))
