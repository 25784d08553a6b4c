"""Every statement goes by itself, so that it can be a step; and the broker is away, unless a test wants it."""

import math

import pytest
from pytest_django import Settings

from tests.races.conftest import mailbox, patient_passes  # noqa: F401


@pytest.fixture(autouse=True)
def one_by_one(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send no statements together; leave what is admitted to a later pass that publishes it."""
    settings.DISPATCHER = {"pipeline": False}
    monkeypatch.setattr("dispatcher.lifecycle.publish._Rest.until", math.inf)
