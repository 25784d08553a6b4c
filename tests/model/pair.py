"""The engine's rows beside the rules: what the engine admitted must be allowed, and everything else be the same."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, LiteralString
from uuid import UUID

from django.db import connection
from psycopg.sql import SQL, Identifier

from tests.clock import T0, Clock
from tests.drive import Drive, Run
from tests.model.rules import AHEAD, ALWAYS, QUEUES, Call, Lane, Rules
from tests.model.turns import Turns

STEP = timedelta(milliseconds=1)
"""What every step takes, so that no two lanes are served at the same time."""
BROKERS = [queue for queue, delivery in QUEUES.items() if delivery == "broker"]
KEEP = timedelta(seconds=1)
"""For how long room is kept for a lane whose workers are busy."""
CATCH_UP = 2
"""Within how many ticks all is where it belongs that locks have held up."""

_TABLES = (
    *("callqueue", "slot", "start", "note", "lanesite", "lane", "ratelimitkey", "process", "worker", "ojs_pullworker"),
)
_CALLS = """SELECT id, lane_id, state, attempt, ticket, scheduled_at, dispatched_at, published_at, started_at,
                    oversized_key_id
              FROM dispatcher_callqueue"""
_SLOTS = """SELECT slot.call_id, key.name, slot.cost, slot.lease_until
              FROM dispatcher_slot AS slot LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id"""
_LANES = """SELECT site.lane_id AS id, site.served_at, site.place,
                   CASE WHEN isfinite(site.kept_until) THEN site.kept_until END AS kept_until,
                   EXISTS (SELECT FROM dispatcher_process AS one WHERE site.queue = ANY (one.queues)) AS has_worker
              FROM dispatcher_lanesite AS site"""


def _rows(statement: LiteralString) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        names = [column.name for column in cursor.description]
        return [SimpleNamespace(**dict(zip(names, values, strict=True))) for values in cursor]


@dataclass(frozen=True)
class Worker:
    """One that takes calls of these queues by itself."""

    name: str
    drive: Drive = field(repr=False)
    queues: Sequence[str]


@dataclass
class Touched:
    """What an open transaction of somebody else's may have locked."""

    calls: set[UUID] = field(default_factory=set)
    lanes: set[Lane] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.calls or self.lanes or self.keys)


class Pair:
    """The engine and the rules at one moment, which goes on by steps."""

    def __init__(self, clock: Clock, drives: Mapping[str, Drive]) -> None:
        with connection.cursor() as cursor:
            # Quicker than to truncate them: they are small.
            for table in _TABLES:
                cursor.execute(SQL("DELETE FROM {}").format(Identifier(f"dispatcher_{table}")))
        self.clock, self.drives, self.now = clock, drives, T0
        clock.set(self.now)
        self.rules = Rules({})
        self.turns = Turns(self.rules)
        self._messages()
        self.tickets: dict[UUID, UUID] = {}
        self.replaced: list[tuple[UUID, UUID]] = []
        """Tickets that are worth nothing any more."""
        self.is_settled = True
        """No call could go before this step, and time had opened nothing: a call that goes in it goes because of it."""
        self.has_opened = False
        """Whether time had opened a key before this step that no tick has seen."""
        self.ticked_at = self.now
        self.lag = 0
        """How many ticks may pass until every call goes that may: an actor died half way, or a lock held it up."""
        self.touched = Touched()
        self.parked: set[Lane] = set()
        """Lanes that waited for a key before this step, and whose turn on it who serves the key must look at."""
        self.kept: set[str] = set()
        """Keys with room that is kept for a lane whose worker was woken, or was busy when it was the lane's turn."""
        self.agrees = True

    def begin(self) -> datetime:
        """Begin the next step, and return its time."""
        self.agrees = False
        self.now += STEP
        self.clock.set(self.now)
        self.has_opened = self._has_opened()
        self.is_settled = not self.rules.turns(self.now, is_lax=True) and not self.has_opened
        return self.now

    def touch(self, touched: Touched) -> None:
        """Let another transaction hold these, or give all of them back."""
        self.touched, self.rules.locked = touched, touched.calls
        self.lag = CATCH_UP

    def is_free(self, call_id: UUID) -> bool:
        """Return whether a call, its lane and its keys are free of locks."""
        call, touched = self.rules.calls[call_id], self.touched
        is_held = call_id in touched.calls or call.lane in touched.lanes
        return not (is_held or touched.keys.intersection(self.rules.costs(call)))

    def compare(
        self,
        *,
        is_tick: bool = False,
        is_lone: bool = False,
        taken: Sequence[Run] = (),
        looked_for: Worker | None = None,
        served: Collection[str] = (),
    ) -> None:
        """Hold the engine to the rules.

        is_tick: the step served all that time had opened. is_lone: a call may have gone as it was written. taken: what
        the step has started for a worker. looked_for: a worker with room for more than it took, and its queues.
        served: the queues of the one that took.
        """
        self.agrees = False
        if is_tick and not self.touched:
            self.lag = max(self.lag - 1, 0)
        rows = {row.id: row for row in _rows(_CALLS)}
        assert rows.keys() == self.rules.calls.keys()
        self._adopt(rows)
        unplaced = {call_id for call_id, row in rows.items() if row.lane_id is None}
        if unplaced:
            # Its lane could not be made at once, as on a busy machine; a tick makes it.
            self.lag = max(self.lag, 1)
        is_full = is_tick and not self.lag
        numbers = {row.lane_id: self.rules.calls[call_id].lane for call_id, row in rows.items()}
        for number, lane in numbers.items():
            if self.rules.served.get(lane, (ALWAYS, 0))[1] == 0:
                self.rules.served[lane] = (ALWAYS, number or 0)
        aside = {call_id for call_id, row in rows.items() if row.oversized_key_id is not None}
        fitting = [call_id for call_id in aside if not self.rules.is_oversized(call_id, self.now)]
        assert not (is_full and fitting), f"{fitting} wait alone after a tick, and fit"
        aside |= self.touched.calls | unplaced
        self._read_kept(numbers)
        self._take(taken, aside, rows, served)
        admitted = self._admitted(rows, [each.call for each in taken])
        must = is_full or (self.is_settled and not self.lag)
        self._judge(admitted, rows, aside, must=must, looked_for=looked_for)
        if not self.lag:
            lines = self._in_line({*aside, *filter(self._is_oversized, self.rules.in_state("available"))})
            heads = [calls[0] for calls in lines.values()]
            self.turns.check_priorities(admitted, heads, BROKERS)
            self.turns.check_priorities([each.call for each in taken], heads, served)
        self.ticked_at = self.now if is_full else self.ticked_at
        self._compare_calls(rows)
        self._compare_slots()
        self._compare_turns(numbers, [*(each.call for each in taken), *admitted], is_lone=is_lone)
        self.agrees = True

    def _read_kept(self, numbers: Mapping[int, Lane]) -> None:
        kept = {row.id: row.kept_until for row in _rows(_LANES) if row.kept_until and row.kept_until > self.now}
        until = {numbers[number]: at for number, at in kept.items() if number in numbers}
        assert all(at <= self.now + KEEP for at in until.values()), f"room is kept for too long: {until}"
        self.kept = {name for lane in until for name in (*lane.keys, f"queue:{lane.queue}")}

    def _adopt(self, rows: Mapping[UUID, Any]) -> None:
        """Let what time brings come to calls that others have touched, or not yet: as the rows have it.

        A trip discards what has expired in front of a lane, and a tick the rest.
        """
        for call_id in self.rules.in_state("available"):
            if rows[call_id].state == "discarded" and self.rules.calls[call_id].expires_at <= self.now:
                self.rules.calls[call_id].move("discarded")
        for call_id in self.touched.calls & rows.keys():
            call, state = self.rules.calls[call_id], rows[call_id].state
            is_due = call.state in ("scheduled", "retryable") and call.scheduled_at <= self.now
            is_late = call.state in ("scheduled", "retryable", "available") and call.expires_at <= self.now
            if (state == "available" and is_due) or (state == "discarded" and is_late):
                call.move(state)

    def _is_oversized(self, call_id: UUID) -> bool:
        return self.rules.is_oversized(call_id, self.now)

    def _in_line(self, aside: Collection[UUID]) -> dict[Lane, list[UUID]]:
        lines = {
            lane: [each for each in calls if each not in aside] for lane, calls in self.rules.waiting(self.now).items()
        }
        return {lane: calls for lane, calls in lines.items() if calls}

    def _go(self, call_id: UUID, aside: Collection[UUID], *, worker: str | None, queues: Collection[str]) -> None:
        """Let a call go by the rules: in its turn, and under all limits."""
        call = self.rules.calls[call_id]
        assert self._in_line(aside).get(call.lane, [])[:1] == [call_id], f"{call} went out of its turn"
        assert self.rules.fits(call, self.now, is_lax=True, worker=worker), f"{call} went over a limit"
        must = not (self.lag or self.has_opened)
        self.turns.note(call_id, self.now, aside=aside, queues=queues, parked=self.parked, must=must)
        self.rules.admit(call_id, self.now, worker=worker)

    def _take(
        self, taken: Sequence[Run], aside: Collection[UUID], rows: Mapping[UUID, Any], served: Collection[str]
    ) -> None:
        """Let the rules start what a worker of these queues has started: each call with a new ticket."""
        reserved = {name: self.rules.unstarted(name) for name in self.rules.keys}
        for run in taken:
            call = self.rules.calls[run.call]
            assert call.lane.delivery != "broker", f"{call} is the broker's"
            assert run.ticket == rows[run.call].ticket
            assert run.ticket not in {*self.tickets.values(), *(old for _, old in self.replaced)}
            self._go(run.call, aside, worker=run.worker, queues=served)
        for run in taken:
            self.rules.start(run.call, self.now, worker=run.worker, reserved=reserved)
            call = self.rules.calls[run.call]
            assert (run.attempt, run.start_at) == (call.attempt, call.started_at)

    def _has_opened(self) -> bool:
        """Return whether time has opened a key since the last tick, which the next one will see."""
        then, now = self.ticked_at, self.now
        room = self.rules.has_room
        return any(
            room(name, cost, now, is_lax=True, horizon=ahead)
            and not room(name, cost, then, is_lax=False, horizon=ahead)
            for name in self.rules.keys
            for cost in (1, 2, 3)
            for ahead in AHEAD.values()
        )

    def _admitted(self, rows: Mapping[UUID, Any], taken: Sequence[UUID]) -> list[UUID]:
        """Return the calls that were published, in order: each with the ticket of its row, which is a new one.

        Those that a worker has taken have new tickets, too, and no message.
        """
        messages = self._messages()
        for call_id in self.rules.repeated:
            messages.remove((call_id, self.tickets[call_id]))
        self.rules.repeated = []
        tickets = {call_id: row.ticket for call_id, row in rows.items() if row.ticket is not None}
        new = [*messages, *((call_id, tickets[call_id]) for call_id in taken)]
        assert sorted(new) == sorted(tickets.items() - self.tickets.items())
        assert all(rows[call_id].published_at == rows[call_id].dispatched_at == self.now for call_id, _ in new)
        self.replaced += [
            (call_id, ticket) for call_id, ticket in self.tickets.items() if tickets.get(call_id) != ticket
        ]
        self.tickets = tickets
        return [call_id for call_id, _ in messages]

    def _messages(self) -> list[tuple[UUID, UUID]]:
        return [message for queue in BROKERS for message in self.drives[queue].mailbox.empty()]

    def _judge(
        self,
        admitted: list[UUID],
        rows: Mapping[UUID, Any],
        aside: Collection[UUID],
        *,
        must: bool,
        looked_for: Worker | None,
    ) -> None:
        rules, now = self.rules, self.now
        may_go, must_go = rules.turns(now, is_lax=True), rules.turns(now, is_lax=False)
        waiting = [rules.calls[call_id] for call_id in rules.in_state("available")]
        is_plain = all(cost == 1 for call in waiting for cost in call.costs.values())
        is_shared = any(call.lane.delivery != "broker" for call in waiting)
        put_off = {
            call_id: rows[call_id].state
            for call_id in rules.in_state("available")
            if rows[call_id].state in ("scheduled", "discarded")
        }
        for call_id, state in put_off.items():
            call = rules.calls[call_id]
            assert (call.lane.on_limit, state) in {("reschedule", "scheduled"), ("drop", "discarded")}
            call.move(state, rows[call_id].scheduled_at)
            assert state == "discarded" or call.scheduled_at > now
        for call_id in admitted:
            self._go(call_id, aside, worker=None, queues=BROKERS)
        if must and is_plain and may_go == must_go and not is_shared and not self.kept:
            done = {**dict.fromkeys(admitted, "dispatched"), **put_off}
            assert done == must_go, f"{done} went, and not {must_go}, of {rules}, at {now}"
        in_line = [
            [each for each in calls if not rules.is_oversized(each, now)] for calls in rules.waiting(now).values()
        ]
        heads = [calls[0] for calls in in_line if calls]
        free = [
            (call_id, worker)
            for call_id in (*put_off, *heads)
            for worker in self._takers(rules.calls[call_id], looked_for, is_put_off=call_id in put_off, must=must)
            if rules.fits(rules.calls[call_id], now, is_lax=False, worker=worker)
        ]
        for call_id, worker in free:
            is_kept = self.kept.intersection(rules.costs(rules.calls[call_id]))
            assert is_kept or self._is_behind_a_dear_one(call_id, [*heads, *put_off], worker), (
                f"{rules.calls[call_id]} has room and waits, in {rules}, at {now}"
            )

    def _takers(self, call: Call, looked_for: Worker | None, *, is_put_off: bool, must: bool) -> Sequence[str | None]:
        """Return who should have started a call that had room: a worker, or any (None)."""
        if is_put_off:
            # That one worker has its part puts no call off.
            return [] if self.touched else [None]
        if call.lane.delivery == "broker":
            return [None] if must else ()
        if looked_for is None or self.lag or self.has_opened or call.lane.queue not in looked_for.queues:
            return ()
        return [looked_for.name]

    def _is_behind_a_dear_one(self, call_id: UUID, others: list[UUID], worker: str | None) -> bool:
        """Return whether one that costs more than 1 waits for a key of this call."""
        costs = self.rules.costs(self.rules.calls[call_id])
        return any(
            cost > 1 and name in costs and not self.rules.has_room(name, cost, self.now, is_lax=False, worker=worker)
            for other in others
            for name, cost in self.rules.costs(self.rules.calls[other]).items()
        )

    def _compare_calls(self, rows: Mapping[UUID, Any]) -> None:
        for call_id, call in self.rules.calls.items():
            row = rows[call_id]
            assert (row.state, row.attempt) == (call.state, call.attempt), f"{row} is not {call}"
            if call.state in ("scheduled", "retryable"):
                assert row.scheduled_at == call.scheduled_at, f"{row} is not {call}"
            if call.state == "active":
                assert row.started_at == call.started_at, f"{row} is not {call}"

    def _compare_slots(self) -> None:
        slots: dict[UUID, dict[str | None, tuple[int, datetime]]] = {}
        for slot in _rows(_SLOTS):
            slots.setdefault(slot.call_id, {})[slot.name] = (slot.cost, slot.lease_until)
        in_flight = {call_id: self.rules.calls[call_id] for call_id in self.rules.in_state("dispatched", "active")}
        assert slots == {
            call_id: {name: (cost, call.lease_until) for name, cost in (call.held or {None: 1}).items()}
            for call_id, call in in_flight.items()
        }

    def _compare_turns(self, numbers: Mapping[int, Lane], gone: list[UUID], *, is_lone: bool) -> None:
        served = {self.rules.calls[call_id].lane for call_id in gone}
        for row in _rows(_LANES):
            number, at = row.id, row.served_at
            lane = numbers.get(number)
            if lane is None:
                continue
            before, _ = self.rules.served[lane]
            is_new = self.now <= at <= self.now + timedelta(microseconds=len(gone))
            assert is_new if lane in served and not is_lone else is_new or at in (before, min(at, T0))
            if at >= T0:
                self.rules.served[lane] = (at, number)
            is_seen = lane.delivery != "direct" or row.has_worker
            (self.parked.add if (row.place or 0) > 0 and is_seen else self.parked.discard)(lane)
