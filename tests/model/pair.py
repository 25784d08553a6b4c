"""The engine's rows beside the rules: what the engine admitted must be allowed, and everything else be the same."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any, LiteralString
from uuid import UUID

from django.db import connection
from psycopg.sql import SQL, Identifier

from dispatcher.models import Queue
from tests.builders import T0
from tests.model.clock import set_clock
from tests.model.rules import ALWAYS, DIRECT, Call, Lane, Rules
from tests.races.lockstep import Mailbox

STEP = timedelta(milliseconds=1)
"""What every step takes, so that no two lanes are served at the same time."""

_CALLS = """SELECT id, lane_id, state, attempt, ticket, scheduled_at, dispatched_at, published_at, started_at,
                    oversized_key_id
              FROM dispatcher_callqueue"""
_SLOTS = """SELECT slot.call_id, key.name, slot.cost, slot.lease_until
              FROM dispatcher_slot AS slot LEFT JOIN dispatcher_ratelimitkey AS key ON key.id = slot.key_id"""
_LANES = "SELECT id, served_at FROM dispatcher_lane"


def _rows(statement: LiteralString) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement)
        names = [column.name for column in cursor.description]
        return [SimpleNamespace(**dict(zip(names, values, strict=True))) for values in cursor]


class Pair:
    """The engine and the rules at one moment, which goes on by steps."""

    def __init__(self) -> None:
        with connection.cursor() as cursor:
            # Quicker than to truncate them: they are small.
            for table in ("callqueue", "slot", "window", "lane", "ratelimitkey", "worker"):
                cursor.execute(SQL("DELETE FROM {}").format(Identifier(f"dispatcher_{table}")))
        Queue.objects.update_or_create(name=DIRECT, defaults={"delivery": "direct"})
        self.now = T0
        self.rules = Rules({})
        self.mailboxes = [Mailbox(queue) for queue in ("one", "two")]
        self._messages()
        self.tickets: dict[UUID, UUID] = {}
        self.replaced: list[tuple[UUID, UUID]] = []
        """Tickets that are worth nothing any more."""
        self.is_settled = True
        """No call could go before this step, and time had opened nothing: a call that goes in it goes because of it."""
        self.ticked_at = self.now
        self.is_neglected = False
        """Somebody died between a commit and the look after it: others may wait until the sweep of the next tick."""
        self.agrees = True
        set_clock(self.now)

    def begin(self) -> datetime:
        """Begin the next step, and return its time."""
        self.agrees = False
        self.now += STEP
        set_clock(self.now)
        self.is_settled = not self.rules.turns(self.now, is_lax=True) and not self._has_opened()
        return self.now

    def compare(
        self,
        *,
        is_full: bool = False,
        is_lone: bool = False,
        taken: Sequence[UUID] = (),
        worker: UUID | None = None,
        are_taking_all: Sequence[UUID] = (),
    ) -> None:
        """Hold the engine to the rules.

        is_full: the step served all that time had opened. is_lone: a call may have gone as it was written. taken: the
        calls that a step of a feed has started for `worker`, before it served others. are_taking_all: the workers whose
        latest steps had room for more.
        """
        self.agrees = False
        rows = {row.id: row for row in _rows(_CALLS)}
        assert rows.keys() == self.rules.calls.keys()
        numbers = {row.lane_id: self.rules.calls[call_id].lane for call_id, row in rows.items()}
        for number, lane in numbers.items():
            self.rules.served.setdefault(lane, (ALWAYS, number))
        self._take(taken, rows, worker)
        admitted = self._admitted(rows, taken)
        aside = {call_id for call_id, row in rows.items() if row.oversized_key_id is not None}
        fitting = [call_id for call_id in aside if not self.rules.is_oversized(call_id, self.now)]
        assert not (is_full and fitting), f"{fitting} wait alone after a tick, and fit"
        self._judge(
            admitted,
            rows,
            aside,
            are_taking_all=are_taking_all,
            must=is_full or (self.is_settled and not self.is_neglected),
        )
        self.ticked_at = self.now if is_full else self.ticked_at
        self._compare_calls(rows)
        self._compare_slots()
        self._compare_turns(numbers, [*taken, *admitted], is_lone=is_lone)
        self.agrees = True

    def _take(self, taken: Sequence[UUID], rows: Mapping[UUID, Any], worker: UUID | None) -> None:
        """Let the rules start what a step has started: each call in its turn, under all limits, with a new ticket."""
        aside = {call_id for call_id, row in rows.items() if row.oversized_key_id is not None}
        for call_id in taken:
            call = self.rules.calls[call_id]
            assert call.lane.queue == DIRECT, f"{call} is the broker's"
            in_line = [waits for waits in self.rules.waiting(self.now).get(call.lane, []) if waits not in aside]
            assert in_line[:1] == [call_id], f"{call} started out of its turn"
            assert self.rules.fits(call, self.now, is_lax=True, worker=worker), f"{call} went over a limit"
            assert rows[call_id].ticket not in {*self.tickets.values(), *(old for _, old in self.replaced)}
            self.rules.admit(call_id, self.now, worker=worker)
        for call_id in taken:
            self.rules.start(call_id, self.now)

    def _has_opened(self) -> bool:
        """Whether time has opened a key since the last tick, which the next one will see."""
        then, now = self.ticked_at, self.now
        room = self.rules.has_room
        return any(
            room(name, cost, now, is_lax=True) and not room(name, cost, then, is_lax=False)
            for name in self.rules.keys
            for cost in (1, 2, 3)
        )

    def _admitted(self, rows: Mapping[UUID, Any], taken: Sequence[UUID]) -> list[UUID]:
        """Return the calls that were published, in order: each with the ticket of its row, which is a new one.

        Those that a step has started have new tickets, too, and no message.
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
        return [message for mailbox in self.mailboxes for message in mailbox.empty()]

    def _judge(
        self,
        admitted: list[UUID],
        rows: Mapping[UUID, Any],
        aside: set[UUID],
        *,
        are_taking_all: Sequence[UUID],
        must: bool,
    ) -> None:
        rules, now = self.rules, self.now
        may_go, must_go = rules.turns(now, is_lax=True), rules.turns(now, is_lax=False)
        is_plain = all(
            cost == 1 for call_id in rules.in_state("available") for cost in rules.calls[call_id].costs.values()
        )
        is_shared = any(rules.calls[call_id].lane.queue == DIRECT for call_id in rules.in_state("available"))
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
            call = rules.calls[call_id]
            in_line = [waits for waits in rules.waiting(now)[call.lane] if waits not in aside]
            assert in_line[0] == call_id, f"{call} went out of its turn"
            assert rules.fits(call, now, is_lax=True), f"{call} went over a limit"
            rules.admit(call_id, now)
        if must and is_plain and may_go == must_go and not is_shared:
            done = {**dict.fromkeys(admitted, "dispatched"), **put_off}
            assert done == must_go, f"{done} went, and not {must_go}, of {rules}, at {now}"
        in_line = [
            [each for each in calls if not rules.is_oversized(each, now)] for calls in rules.waiting(now).values()
        ]
        heads = [calls[0] for calls in in_line if calls]
        free = [
            (call_id, worker)
            for call_id in (*put_off, *heads)
            for worker in self._takers(rules.calls[call_id], are_taking_all, is_put_off=call_id in put_off, must=must)
            if rules.fits(rules.calls[call_id], now, is_lax=False, worker=worker)
        ]
        for call_id, worker in free:
            assert self._is_behind_a_dear_one(call_id, [*heads, *put_off], worker), (
                f"{rules.calls[call_id]} has room and waits, in {rules}, at {now}"
            )
        for call_id in admitted:
            for head in () if self.is_neglected else heads:
                self._assert_not_passed(rules.calls[head].lane, head, call_id)

    @staticmethod
    def _takers(call: Call, are_taking_all: Sequence[UUID], *, is_put_off: bool, must: bool) -> Sequence[UUID | None]:
        """Return who should have started a call that had room: a worker, or any (None)."""
        if is_put_off:
            # That one worker has its part puts no call off.
            return [None]
        if call.lane.queue == DIRECT:
            return are_taking_all
        return [None] if must else ()

    def _is_behind_a_dear_one(self, call_id: UUID, others: list[UUID], worker: UUID | None) -> bool:
        """Whether one that costs more than 1 waits for a key of this call."""
        costs = self.rules.costs(self.rules.calls[call_id])
        return any(
            cost > 1 and name in costs and not self.rules.has_room(name, cost, self.now, is_lax=False, worker=worker)
            for other in others
            for name, cost in self.rules.costs(self.rules.calls[other]).items()
        )

    def _assert_not_passed(self, lane: Lane, waits: UUID, goes: UUID) -> None:
        """Assert that no call of the same queue and higher priority, which asks for no more, stays behind."""
        higher, lower = self.rules.calls[waits], self.rules.calls[goes]
        costs, more = self.rules.costs(higher), self.rules.costs(lower)
        asks_no_more = all(name in more and cost <= more[name] for name, cost in costs.items())
        assert not (lane.queue == lower.lane.queue and lane.priority > lower.lane.priority and asks_no_more), (
            f"{lower} passed {higher}"
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

    def _compare_turns(self, numbers: Mapping[int, Lane], admitted: list[UUID], *, is_lone: bool) -> None:
        served = {self.rules.calls[call_id].lane for call_id in admitted}
        for row in _rows(_LANES):
            number, at = row.id, row.served_at
            lane = numbers.get(number)
            if lane is None:
                continue
            before, _ = self.rules.served[lane]
            is_new = self.now <= at <= self.now + timedelta(microseconds=len(admitted))
            assert is_new if lane in served and not is_lone else is_new or at in (before, min(at, T0))
            if at >= T0:
                self.rules.served[lane] = (at, number)
