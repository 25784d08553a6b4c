"""A key is deleted while calls wait that name it: its limit is gone, and they go."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from celery import current_app

from dispatcher import engine, handlers, tasks
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.states import State
from tests.apps import APPS

pytestmark = pytest.mark.django_db(transaction=True, available_apps=APPS)


@pytest.fixture(autouse=True)
def _runs_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assert tasks.call.name in current_app.tasks
    monkeypatch.setitem(handlers.registered, "nothing", lambda: None)
    current_app.conf.task_always_eager = True
    yield
    current_app.conf.task_always_eager = False


def test_calls_of_a_deleted_key_go_on_and_hold_up_no_other_call() -> None:
    key = RateLimitKey.objects.declare("gone", concurrency=2)
    later = datetime.now(UTC) + timedelta(minutes=1)
    asked = {"call_data": {"method": "nothing"}, "scheduled_at": later}
    orphan = CallQueue.objects.send(**asked, keys={"gone": 2})
    other = CallQueue.objects.send(**asked)
    key.delete()
    engine.tick(now=later + timedelta(seconds=1))
    states = CallQueue.objects.filter(id__in=[orphan.id, other.id]).values_list("state", flat=True)
    assert list(states) == [State.COMPLETED, State.COMPLETED]
