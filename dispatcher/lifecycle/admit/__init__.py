"""Admit: give waiting calls their slots, as far as every limit of every key has room. The one way in."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from typing import ClassVar
from uuid import UUID

from django.db import OperationalError

from dispatcher import sql
from dispatcher.conf import conf, pass_bound
from dispatcher.lifecycle.admit import record
from dispatcher.lifecycle.admit.decide import Decided, Request, decide
from dispatcher.lifecycle.admit.decide import Pass as Pass
from dispatcher.limits.turns import Share
from dispatcher.models import CallQueue, Slot
from dispatcher.signals import call_dropped
from dispatcher.states import Delivery

KEY_WAIT = timedelta(milliseconds=200)
"""How long a pass waits for a key that it was made for: longer than passes, sends and claims of a hot key hold it."""
_LOCK_NOT_AVAILABLE = "55P03"
"""The SQLSTATE of a wait that lock_timeout has ended."""


class _Stuck:
    """Keys whose lock wait timed out, and until when this process does not wait for them again."""

    until: ClassVar[dict[int, float]] = {}


@dataclass(frozen=True, kw_only=True)
class Recheck:
    """Where the next pass should look."""

    lanes: list[int]
    """Lanes that have calls left, or got some while the pass decided."""
    keys: list[int]
    """Keys with room for lanes that are parked on them."""
    queues: list[str] = field(default_factory=list)
    """Queues with room for lanes that they have held."""


@dataclass(frozen=True, kw_only=True)
class ReleasedRoom:
    """Where a release has made room: keys with parked lanes, the queue of the lane, and whether any lane is awake."""

    keys: list[int]
    has_awake: bool
    queues: list[str]


@dataclass(frozen=True, kw_only=True)
class SpentKeys:
    """The keys that a call in flight spends, by id, but not its groups."""

    names: Mapping[int, str]
    chosen: frozenset[str]
    """The names of those that were chosen of groups."""

    def stopped(self, named: str | None) -> dict[int, str]:
        """Return the keys that a provider stops: the named one; else those that were chosen, or all if none was.

        The provider refuses the account or address that the call used; the others of the group go on.
        """
        wanted = {named} if named is not None else self.chosen
        return {key: name for key, name in self.names.items() if not wanted or name in wanted}


def admit(
    *,
    lanes: Collection[int] = (),
    keys: Collection[int] = (),
    queues: Collection[str] = (),
    awake: bool = False,
    most: int | None = None,
    avoid: Collection[int] = (),
    stuck: Collection[int] = (),
    wait_for: int | None = None,
    delivery: Delivery = Delivery.BROKER,
    worker: UUID | None = None,
    now: datetime | None = None,
) -> Pass:
    """Make one pass over these lanes, those parked on these keys, held by these queues, and, if `awake`, those awake.

    most: how many calls it admits, and how many lanes of a kind it takes, at the most; the settings' by default.
    avoid: keys that somebody has locked; lanes that are awake or held and spend one are not looked at.
    stuck: those of them whose lanes delay no others.
    wait_for: a key to wait for, up to KEY_WAIT, if somebody has locked it; lanes of other keys that are locked are left
    out.
    delivery: the pass admits calls of queues with this delivery; but for the broker's, its caller starts them at once.
    worker: who fetches them; without one, none that spend a key with a limit per worker.
    """
    request = Request(
        lanes=lanes,
        keys=keys,
        queues=queues,
        awake=awake,
        avoid=avoid,
        most=most,
        delivery=delivery,
        worker=worker,
        now=now,
    )
    # Within the caller's transaction the bound on the wait would outlast the pass.
    if wait_for is not None and not sql.connection().in_atomic_block:
        try:
            with sql.own_transaction():
                sql.ask("limit_wait", object, {"wait": f"{KEY_WAIT // timedelta(milliseconds=1)}ms"})
                decided = decide(request, stuck=stuck_keys().union(stuck), wait_for=wait_for)
            return _settled(decided)
        except OperationalError as fault:
            if getattr(fault.__cause__, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
                raise
            _Stuck.until[wait_for] = monotonic() + conf().tick.total_seconds()
    with sql.own_transaction():
        decided = decide(request, stuck=stuck_keys().union(stuck))
    return _settled(decided)


def admit_direct(
    *,
    worker: UUID,
    queues: Collection[str],
    keys: Collection[int],
    avoid: Collection[int],
    stuck: Collection[int],
    most: int,
    shares: Mapping[str, Share],
) -> Pass:
    """Make one pass over the lanes that these direct queues have held, and those parked on these keys.

    In the caller's transaction, which also starts what it admits. stuck: keys that another transaction has locked for
    so long that their lanes delay no others. shares: the turns of the queues by their weights.
    """
    request = Request(
        keys=keys, queues=queues, avoid=avoid, most=most, delivery=Delivery.DIRECT, worker=worker, shares=shares
    )
    return _settled(decide(request, stuck=stuck_keys().union(stuck)))


def stuck_keys() -> set[int]:
    """Return the keys that this process has waited for in vain lately: a transaction keeps them locked."""
    now = monotonic()
    known = list(_Stuck.until.items())
    for key, until in known:
        if until <= now:
            _Stuck.until.pop(key, None)
    return {key for key, until in known if until > now}


def recheck(done: Pass, *, now: datetime | None = None) -> Recheck:
    """Return where room or calls appeared while a pass decided; call it after the commit of that pass."""
    allocation = done.allocation
    if not (allocation.asleep or done.full or allocation.keys_with_room or done.filled):
        return Recheck(lanes=allocation.awake, keys=[])
    again = look_again(
        asleep=allocation.asleep, full=done.full, keys_with_room=allocation.keys_with_room, filled=done.filled, now=now
    )
    return Recheck(lanes=[*allocation.awake, *again.lanes], keys=again.keys, queues=again.queues)


def look_again(
    *,
    asleep: Sequence[int],
    full: Mapping[int, int],
    keys_with_room: Sequence[int] = (),
    filled: Collection[str] = (),
    now: datetime | None = None,
) -> Recheck:
    """Return which of these lanes have calls, and which of these keys and queues room, with a new snapshot."""
    with sql.together():
        asked = ask_again(asleep=asleep, full=full, keys_with_room=keys_with_room, filled=filled, now=now)
    return asked.row()


def ask_again(
    *,
    asleep: Sequence[int],
    full: Mapping[int, int],
    keys_with_room: Sequence[int] = (),
    filled: Collection[str] = (),
    now: datetime | None = None,
) -> sql.Asked[Recheck]:
    """Ask what `look_again` returns: its row is the answer."""
    params = {
        "asleep": list(asleep),
        "full": list(full),
        "held": list(full.values()),
        "keys_with_room": list(keys_with_room),
        "filled": list(filled),
        "ahead": pass_bound(conf()),
        "now": now,
    }
    return sql.ask("recheck", Recheck, params)


def released_room(
    keys: Collection[int] = (), lane: int | None = None, *, call: UUID | None = None, now: datetime | None = None
) -> sql.Asked[ReleasedRoom]:
    """Ask what a release of these keys, in this lane, or of this call may have made room for; its row is the answer."""
    params = {"keys": list(keys), "lane": lane, "call": call, "ahead": pass_bound(conf()), "now": now}
    return sql.ask("find_released_room", ReleasedRoom, params)


def keys_of(call_id: UUID) -> SpentKeys:
    """Return the keys that a call in flight holds slots of."""
    held = Slot.objects.using(conf().database).filter(call=call_id, key__isnull=False, key__is_group=False)
    rows = list(held.values_list("key_id", "key__name", "call__chosen_keys"))
    chosen = {name for _, _, keys in rows for name in (keys or {}).values()}
    return SpentKeys(names={key: name for key, name, _ in rows}, chosen=frozenset(chosen))


def _settled(decided: Decided) -> Pass:
    """Return what a pass did. After its commit, if that is its own: so the commit travels with its last statement."""
    calls = decided.admitted.rows() if decided.admitted is not None else ()
    if decided.dropped:
        sql.after_commit(partial(_report_dropped, decided.dropped))
    return replace(decided.made, calls=calls)


def _report_dropped(dropped: Sequence[record.Dropped]) -> None:
    for call in dropped:
        call_dropped.send_robust(sender=CallQueue, call_id=call.id, key=call.key)
