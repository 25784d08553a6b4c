"""What a sender does: orders, each of them the calls of one transaction, written down before and after.

Of an order whose sender was killed in between, the database decides whether it was sent: all of it, or nothing.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from uuid import uuid4

from django.db import DatabaseError, InterfaceError, transaction
from django.db.models import Count

from dispatcher.models import CallQueue
from dispatcher.request import Call
from dispatcher.states import DUE, State
from trials import notes
from trials.chaos import load

ROLLED_BACK = 0.25
"""The part of the transactions that fail after they have sent."""
LONGEST = 0.3
"""The most seconds for which a transaction stays open after it has sent."""
MOST = 6
REST = 0.3


class ChangedMind(Exception):
    """Raised in a transaction that has sent, so that none of it happens."""


def place_next(chance: Random) -> None:
    """Place an order of a kind that has few calls waiting; rest if there is none, or no database."""
    try:
        kinds = _wanted()
    except (DatabaseError, InterfaceError):
        kinds = []
    if not kinds:
        time.sleep(REST)
        return
    (kind,) = chance.choices(kinds, [load.WEIGHTS[kind] for kind in kinds])
    place(kind, chance)


def place(kind: str, chance: Random) -> None:
    """Place one order, and keep what became of it."""
    name = uuid4().hex
    most = 1 if kind == load.POISON else MOST
    calls = [load.KINDS[kind](chance) for _ in range(chance.randint(1, most))]
    marked = [replace(call, meta={"order": name, "kind": kind}) for call in calls]
    _note("intent", name, count=len(marked))
    try:
        chance.choice([_send_at_once, _send_in_a_transaction, _send_one_by_one])(marked, chance)
    except ChangedMind:
        _note("rolled back", name)
    except (DatabaseError, InterfaceError):
        # The connection may have broken before the commit, or after it.
        time.sleep(REST)
    else:
        _note("committed", name)


def _send_at_once(calls: Sequence[Call], chance: Random) -> None:
    """Send without a transaction of one's own; a lone call then goes the short way."""
    del chance
    CallQueue.objects.send_many(calls)


def _send_in_a_transaction(calls: Sequence[Call], chance: Random) -> None:
    with transaction.atomic():
        CallQueue.objects.send_many(calls)
        _think_again(chance)


def _send_one_by_one(calls: Sequence[Call], chance: Random) -> None:
    with transaction.atomic():
        for call in calls:
            CallQueue.objects.send_many([call])
        _think_again(chance)


def _think_again(chance: Random) -> None:
    time.sleep(chance.uniform(0, LONGEST))
    if chance.random() < ROLLED_BACK:
        raise ChangedMind


def _wanted() -> list[str]:
    """Return the kinds of which too few calls wait to keep their limits busy."""
    waiting = CallQueue.objects.filter(state__in=[State.AVAILABLE, State.DISPATCHED, *DUE])
    counts = dict(waiting.values_list("meta__kind").annotate(Count("id")))
    return [kind for kind in load.KINDS if counts.get(kind, 0) < load.BACKLOG[kind]]


def _note(what: str, order: str, **facts: object) -> None:
    notes.write(notes.directory() / notes.ORDERS, what, order=order, is_kept=True, **facts)
