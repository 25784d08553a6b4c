"""Recover: in batches and slices; and it trims windows."""

from datetime import timedelta
from typing import Any

import pytest

from dispatcher import engine
from dispatcher.models import Window
from tests.builders import at, key, started

pytestmark = [pytest.mark.django_db, pytest.mark.pooler]


@pytest.fixture(autouse=True)
def _leases(settings: Any) -> None:
    settings.DISPATCHER = {"dispatch_lease": 100, "run_lease": 60}


def test_parts_of_windows_that_can_no_longer_count_are_forgotten() -> None:
    key("api", rate=(9, 60))
    key("long", rate=(9, timedelta(hours=1)))
    started("api", "long")
    started("api", now=at(100))
    engine.recover(now=at(239))
    assert Window.objects.count() == 3
    engine.recover(now=at(241))
    assert sorted(Window.objects.values_list("key__name", "last_start_at")) == [
        ("api", at(100)),
        ("long", at(0)),
    ]
    engine.recover(now=at(14_401))
    assert not Window.objects.exists()


def test_a_window_of_milliseconds_is_kept_for_as_long_as_its_margin(settings: Any) -> None:
    settings.DISPATCHER = {"margin": 1}
    key("api", rate=(9, timedelta(milliseconds=1)))
    started("api")
    engine.recover(now=at(1.001))
    assert Window.objects.exists()
