"""The course of a soak: warm up, churn, churn beside an open transaction, and look at what is left of that."""

import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Final

from dispatcher.lifecycle import heartbeat
from dispatcher.models import CallQueue, Slot
from project.services import snapshot
from trials.soak import fixtures, gauges
from trials.soak.gauges import Gauges
from trials.soak.verdict import Reading

ROUNDS = 3
"""How often autovacuum must have come before the first reading: the first time it finds the bulk load, and what the
second empties of an index is used again only after the third."""
ROUNDS_AFTER = 2
"""And before the readings when the transaction is gone: once to clean up after it, once after a churn without it."""
PATIENCE_S = 300.0
"""How long to wait for that; by default autovacuum looks into a database once a minute."""
STRETCH_S = 120.0
"""The longest reading: autovacuum comes twice in it."""
HELD_S = 90.0
"""How long the transaction is held open."""
_CALLS: Final = CallQueue._meta.db_table
_CHURNED: Final = [_CALLS, Slot._meta.db_table]
"""The tables in which rows come and go. Those of windows only change: autovacuum may never have to come."""


Course = dict[str, Reading]
"""The readings of a run, by their labels."""


def run(gauges: Gauges, minutes: float, say: Callable[[str], None]) -> Course:
    """Go through a soak. Raises TimeoutError if autovacuum does not come."""
    course: Course = {}
    stretch = min(STRETCH_S, minutes * 60 / 3)

    def read(label: str, seconds: float = stretch) -> None:
        course[label] = gauges.watch(label, seconds)

    say(f"warming up until retention deletes and autovacuum has come {ROUNDS} times ...")
    settle(gauges, ROUNDS)
    began = monotonic()
    say(f"churning for {minutes:g} minutes ...")
    read("start")
    gauges.pass_time(began + (minutes * 60 - stretch) / 2)
    read("middle")
    gauges.pass_time(began + minutes * 60 - stretch)
    read("end")
    say(f"holding a transaction open for {HELD_S:g} s ...")
    with snapshot(os.environ["DATABASE_URL"]):
        gauges.pass_time(monotonic() + HELD_S * 2 / 3)
        read("held", HELD_S / 3)
    say(f"it is gone; waiting until autovacuum has come {ROUNDS_AFTER} times ...")
    settle(gauges, ROUNDS_AFTER)
    read("after")
    read("later")
    return course


def settle(gauges_: Gauges, rounds: int) -> None:
    """Churn on until autovacuum has come to each table so often, and retention has begun to delete calls.

    To each: it goes from table to table, and the first big one keeps it from those behind for a while.
    """
    first = gauges.sample()
    deadline = monotonic() + PATIENCE_S
    while True:
        gauges_.pass_time(monotonic() + 1.0)
        now = gauges.sample()
        come = min(now.vacuums[table] - first.vacuums[table] for table in _CHURNED)
        if come >= rounds and now.deleted[_CALLS] > first.deleted[_CALLS]:
            return
        if monotonic() > deadline:
            message = f"autovacuum came {come} times in {PATIENCE_S:g} s"
            raise TimeoutError(message)


def prepare(backlog: int, notes: Path) -> Gauges:
    """Make the keys and the backlog, and return what looks at them."""
    here = fixtures.worker("gauges")
    with gauges.on_idle():
        heartbeat.record(here, [])
        fixtures.declare_keys()
    heartbeat.record(here, [])
    fixtures.declare_keys()
    full = fixtures.fill_full(here)
    fixtures.let_wait(backlog, here, full)
    return Gauges(notes=notes, here=here, full=full)
