"""Unused lanes go with the cleanup, in small batches, and what is left of their keys after them."""

from typing import Any

import pytest

from dispatcher.lifecycle.retention import unused
from dispatcher.models import Lane, RateLimitKey
from tests.builders import T0, at, erase, lane_of, waiting

pytestmark = [pytest.mark.django_db, pytest.mark.pooler]

DAY = 86_400
LATE = at(100 * DAY)
"""When everything that is written in these tests has been unused for long."""


@pytest.fixture(autouse=True)
def _templates(settings: Any) -> None:
    settings.DISPATCHER = {"keys": {"tenant:*": {"concurrency": 2}}}


def names() -> set[str]:
    return set(RateLimitKey.objects.values_list("name", flat=True))


def leave(*keys: str, **fields: Any) -> None:
    """Leave a lane, and the keys of it, that had a call once."""
    call = waiting(*keys, **fields)
    erase(call)
    Lane.objects.filter(id=call.lane_id).update(served_at=T0)


def test_many_go_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unused, "_BATCH", 2)
    monkeypatch.setattr(unused, "_KEYS_LOOKED_AT", 3)
    kept = waiting("tenant:0")
    for number in range(1, 8):
        leave(f"tenant:{number}")
    assert unused.remove_lanes(now=LATE) == 7
    assert unused.remove_keys(now=LATE) == 7
    assert lane_of(kept)
    assert names() == {"tenant:0"}
