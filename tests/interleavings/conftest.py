"""Every statement goes by itself, so that it can be a step; and the broker is away, unless a test wants it."""

import math
from datetime import timedelta

import pytest
from django.db import connection
from pytest_django import Settings

from tests.races.conftest import mailbox  # noqa: F401


def wait_for_what_runs(_: float) -> None:
    """Wait until no other transaction has locked a call that runs, or a slot."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM dispatcher_callqueue WHERE state = 'active' ORDER BY id FOR UPDATE")
        cursor.execute("SELECT FROM dispatcher_slot ORDER BY id FOR UPDATE")


@pytest.fixture(autouse=True)
def one_by_one(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send no statements together, try no claim again, and leave what is dispatched to who publishes it later.

    An end that is locked is brought again when it is free, and not again and again.
    """
    settings.DISPATCHER = {"pipeline": False}
    monkeypatch.setattr("dispatcher.lifecycle.publish._Rest.until", math.inf)
    monkeypatch.setattr("dispatcher.lifecycle.claim.LOCK_WAIT", timedelta(0))
    monkeypatch.setattr("dispatcher.engine.ends.sleep", wait_for_what_runs)
