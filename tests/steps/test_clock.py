"""The database's clock: what happens when it is set back or forward, as NTP or a failover does."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from django.db import connection
from django.utils import timezone

from dispatcher import engine
from dispatcher.lifecycle import recover, schedule
from dispatcher.lifecycle.claim import Refused, _offsets, claim
from dispatcher.lifecycle.run import Returned
from dispatcher.models import CallQueue, Start
from dispatcher.states import State
from tests.builders import committed, key, seen, ticket_of, waiting

pytestmark = [committed, pytest.mark.session]

DAY = 86_400
# Statements and functions find it as they find that of tests.clock.
_MAKE = """
CREATE SCHEMA clock;
CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS $$ SELECT pg_catalog.clock_timestamp() + current_setting('stepped.by')::interval $$;
SELECT set_config('stepped.by', '0', false)
"""


@pytest.fixture
def step() -> Iterator[Callable[[float], None]]:
    """Return how to set the clock of this connection's database so many seconds forward."""

    def step(seconds: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('stepped.by', %s, false)", [f"{seconds} seconds"])

    _offsets.clear()
    with connection.cursor() as cursor:
        cursor.execute(_MAKE)
    yield step
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA clock CASCADE")
    _offsets.clear()


def run(*keys: str) -> CallQueue:
    """Run a call from its dispatch to its end; where this process is too late for its start, again."""
    call, outcome = waiting(*keys), Refused.MISSED
    while outcome is Refused.MISSED:
        assert engine.dispense() == 1
        outcome = engine.execute(call.id, ticket_of(seen(call)), lambda: 7)
    assert outcome == Returned(result=7)
    return seen(call)


@pytest.mark.parametrize("seconds", [-0.5, -3_600, 0.5, 3_600])
def test_a_clock_that_is_set_leaves_each_start_counted_once(step: Callable[[float], None], seconds: float) -> None:
    key("api", rate=(10, 60))
    for _ in range(60):
        run()
    step(seconds)
    for _ in range(10):
        run("api")
    assert Start.objects.latest("at", "total").total == sum(Start.objects.values_list("cost", flat=True)) == 10


def test_a_throttle_keeps_its_spacing_when_the_clock_is_set_back(step: Callable[[float], None]) -> None:
    key("api", throttle=(20, 1))
    run()  # The first claim of a connection has more time.
    first = run("api")
    step(-0.05)
    second = run("api")
    assert first.started_at is not None
    assert second.started_at is not None
    assert (second.started_at - first.started_at).total_seconds() >= 0.05


def documented() -> str:
    """Return what the documentation has people run when the clock has been put right."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "incidents.md").read_text()
    return text.split("\n## The database's clock was ahead\n")[1].split("```python\n")[1].split("```")[0]


@pytest.mark.parametrize("limits", [{"rate": (2, 60)}, {"throttle": (1, 60)}], ids=["rate", "throttle"])
def test_a_key_that_was_used_under_a_clock_a_day_ahead_opens_as_documented(
    step: Callable[[float], None], limits: dict[str, tuple[int, int]]
) -> None:
    key("api", **limits)
    step(DAY)
    for _ in range(limits.get("rate", (1, 0))[0]):
        run("api")
    step(0)
    call = waiting("api")
    engine.dispense()
    step(3_600)
    assert not schedule.ask_due().row().has_notes
    engine.dispense()
    assert seen(call).state == State.AVAILABLE, "the key should be shut"
    step(0)
    exec(documented(), {})  # noqa: S102 -- what it says is what is tested
    assert schedule.ask_due().row().has_notes
    engine.dispense()
    assert seen(call).state == State.AVAILABLE, "the starts should count as if just made"
    step(61)
    engine.dispense()
    assert seen(call).state == State.DISPATCHED


def test_a_call_whose_worker_died_under_a_clock_a_day_ahead_goes_back_as_documented(
    step: Callable[[float], None],
) -> None:
    step(DAY)
    call = waiting()
    engine.dispense()
    claim(call.id, ticket_of(seen(call)))
    step(0)
    exec(documented(), {})  # noqa: S102 -- what it says is what is tested
    soon = timezone.now() + timedelta(minutes=6)
    assert [each.call_id for each in recover.expired(now=soon)] == [call.id]
