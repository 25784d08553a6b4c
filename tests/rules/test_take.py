"""`take` against its reference, on random systems: what each trip answers, and all that it leaves."""

from copy import deepcopy
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any

import psycopg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.sql.functions import installed_name
from tests.rules import checker, reference
from tests.rules.reference import LOWEST, MILLISECOND, SECOND, Claim, End, Limits, Note, Trip, Tuning
from tests.rules.systems import (
    BEGIN,
    PROCESSES,
    QUEUES,
    WORKERS,
    add_call,
    add_note,
    back,
    call_claim,
    call_take,
    held_in_database,
    held_in_memory,
    load,
    random_call,
    random_system,
    time,
)

TRIPS = 14
STEPS = [0, 1 * MILLISECOND, 6 * MILLISECOND, 60 * MILLISECOND, 200 * MILLISECOND, SECOND, 3500 * MILLISECOND]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_take_does_what_its_reference_does(db: psycopg.Connection, seed: int) -> None:
    compared = Comparison(db, Random(seed))
    compared.run()
    compared.drain()


def test_no_call_comes_before_an_earlier_one_of_its_lane_though_their_share_got_something_back(
    db: psycopg.Connection,
) -> None:
    state = reference.State()
    state.keys[1] = reference.Key(id=1, name="k", limits=Limits(), override=Limits(), fair_by="t:*")
    lane = state.lanes[1] = reference.Lane(id=1, queue="a", priority=0, on_limit="wait", key_ids=[1])
    first, second = state.calls = [random_call(Random(0), state, lane, n) for n in (0, 1)]
    second.position = first.position + 1
    load(db, state)
    # The first one's turn in line is 700,000; the share's next is 100,000.
    seat = f"ROW(1, 2, 1, 5, 700000, 100000, 0, now(), {LOWEST})::{installed_name('seat')}"
    lines = [f"ROW(1, 0, {share}, 1, 100000, 100000)::{installed_name('line')}" for share in (0, -1)]
    given = f"ARRAY[1], ARRAY[{seat}], ARRAY[{', '.join(lines)}], '{{}}', '{{}}', '{{}}', false"
    calls, rounds = db.execute(f"SELECT calls, rounds FROM {installed_name('rounds')}({given})").fetchone() or ([], [])
    by_call = dict(zip(calls, rounds, strict=True))
    assert by_call[first.id] <= by_call[second.id]


class Comparison:
    """One system, in the database and in memory."""

    def __init__(self, db: psycopg.Connection, rnd: Random) -> None:
        self.db, self.rnd = db, rnd
        self.state = random_system(rnd)
        self.tuning = random_tuning(rnd)
        self.now = BEGIN
        self.started = 0
        self._events = [self._send, self._move_up, self._become_idle, self._claim, self._retry, self._cancel]
        self._events += [self._change_limits, self._hint_slots]
        load(db, self.state)

    def run(self) -> int:
        """Make trips in both; return how many calls have started."""
        for _ in range(TRIPS):
            self.now += self.rnd.choice(STEPS)
            for event in self._events:
                if self.rnd.random() < 0.25:
                    event()
            self.take(random_trip(self.rnd, self.state, self.now, self.tuning))
        return self.started

    def take(self, trip: Trip) -> reference.Answer:
        """Make one trip in both."""
        before = deepcopy(self.state)
        *calls, last = call_take(self.db, trip)
        expected = reference.take(self.state, trip)
        started = [row.id for row in calls if row.fate is None]
        assert started == expected.started, (started, expected.started, trip)
        fates = {row.id: row.fate for row in calls if row.fate is not None}
        assert fates == expected.fates, (fates, expected.fates, trip)
        answer = {
            "wake": {*last.wake},
            "publish": {*last.publish},
            "again_at": back(last.again_at),
            "ended": {*last.ended},
            "freed": {*(last.freed or ())},
            "locked": [*last.locked],
        }
        wanted = {name: getattr(expected, name, []) for name in answer}
        assert answer == wanted, (different(answer, wanted), trip)
        self._compare(trip)
        self.started += len(expected.started)
        faults = checker.faults(before, self.state, trip, expected)
        assert not faults, (faults, trip)
        return expected

    def _compare(self, what: Any) -> None:
        memory = held_in_memory(self.state)
        for name, there in held_in_database(self.db).items():
            assert there == memory[name], (name, different(there, memory[name]), what)

    def drain(self) -> None:
        """Let workers come until all has started that no key stops for good, whatever the reference says."""
        stopped = {id for id, key in self.state.keys.items() if key.is_paused or key.limits.concurrency == 0}
        stopped |= {key.id for key in self.state.keys.values() if key.is_group and not self.state.members(key)}
        stopped |= {g.id for id in stopped for g in self.state.groups(self.state.keys[id])}
        stopped |= {m.id for id in stopped for m in self.state.members(self.state.keys[id])}
        lanes = [lane for lane in self.state.lanes.values() if not stopped & {*reference.all_keys(self.state, lane)}]
        self.tuning = replace(self.tuning, any_delivery=True, notes=None)
        for lane in lanes:  # That a queue is another's to deliver is a change that is noted.
            if checker.is_per_worker(self.state, lane.place, self.now):
                self._note(lane.id, is_forced=True)
        empty = 0
        while (left := [lane.id for lane in lanes if self.state.waiting(lane.id)]) and empty < 60:
            self.now += 300 * MILLISECOND if empty < 30 else 2 * SECOND
            self._retry()
            self._claim(ahead=10 * SECOND, most=100)
            got = 0
            for worker, queue in product(WORKERS, QUEUES):
                # No worker is lent a call of the broker's, since a limit per worker has no meaning there.
                ends = [End(call=call, state="completed") for call in self.state.calls if call.state == "active"]
                trip = Trip(
                    now=self.now, worker=worker, queues=[queue], tasks=None, room=3, ends=ends, tuning=self.tuning
                )
                got += len(self.take(trip).started)
            empty = 0 if got else empty + 1
        assert not left, [(self.state.lanes[id], self.state.waiting(id)[0]) for id in left]

    # What happens between trips.

    def _note(
        self, lane: int | None, key: int | None = None, *, is_forced: bool = False, position: int = LOWEST
    ) -> None:
        note = Note(self.now, lane, key, is_forced, position)
        self.state.notes.append(note)
        add_note(self.db, note)

    def _send(self) -> None:
        if not self.state.lanes:
            return
        lane = self.rnd.choice([*self.state.lanes.values()])
        call = random_call(self.rnd, self.state, lane, len(self.state.calls) + 100)
        self.state.calls.append(call)
        add_call(self.db, self.state, call)
        self._note(lane.id, position=call.position)

    def _move_up(self) -> None:
        """Move a call in front of all, or between two others, as who lets it run now and as who commits late."""
        if not (waiting := [call for call in self.state.calls if call.waits]):
            return
        call = self.rnd.choice(waiting)
        lowest = min(call.position for call in self.state.calls)
        taken = {other.position for other in self.state.calls}
        between = sorted({*range(lowest, call.position)} - taken)
        call.position = self.rnd.choice([min(lowest, 0) - 1, *self.rnd.sample(between, min(1, len(between)))])
        self.db.execute("UPDATE dispatcher_callqueue SET position = %s WHERE id = %s", [call.position, call.id])
        is_late = self.rnd.random() < 0.5
        self._note(
            call.lane,
            is_forced=not is_late,
            position=call.position if is_late else self.rnd.choice([call.position, LOWEST]),
        )

    def _hint_slots(self) -> None:
        self.db.execute(f"SELECT {installed_name('hint_slots')}(%s)", [[*self.state.keys]])

    def _become_idle(self) -> None:
        for id, mark in self.state.processes.items():
            if self.rnd.random() < 0.7:
                mark.idle_at = self.now - self.rnd.choice([0, 1])
                self.db.execute("UPDATE dispatcher_process SET idle_at = %s WHERE id = %s", [time(mark.idle_at), id])

    def _claim(self, ahead: int | None = None, most: int = 2) -> None:
        dispatched = [call for call in self.state.calls if call.state == "dispatched"]
        for call in self.rnd.sample(dispatched, min(most, len(dispatched))):
            ahead = self.rnd.choice([0, 200 * MILLISECOND, SECOND]) if ahead is None else ahead
            claim = Claim(now=self.now, call=call, worker=WORKERS[0], ahead=ahead, tuning=self.tuning)
            row = call_claim(self.db, claim)
            assert (back(row.start_at), row.refused) == reference.claim(self.state, claim), (row, claim)
            if row.refused in ("expired", "revoked", "closed"):
                self._discard(call)
            self._compare(claim)

    def _discard(self, call: reference.Call) -> None:
        call.state = "discarded"
        freed = {slot.key for slot in self.state.slots if slot.call == call.id and slot.key is not None}
        self.state.slots = [slot for slot in self.state.slots if slot.call != call.id]
        self.db.execute("UPDATE dispatcher_callqueue SET state = 'discarded' WHERE id = %s", [call.id])
        self.db.execute("DELETE FROM dispatcher_slot WHERE call_id = %s", [call.id])
        for key in freed:
            self._note(None, key)

    def _retry(self) -> None:
        """Let the calls go on whose time has come, as a tick does."""
        for call in self.state.calls:
            if call.state in ("retryable", "scheduled") and (call.scheduled_at or 0) <= self.now:
                call.state = "available"
                self.db.execute("UPDATE dispatcher_callqueue SET state = 'available' WHERE id = %s", [call.id])
                self._note(call.lane, is_forced=True, position=call.position)  # maybe the first of its lane again

    def _cancel(self) -> None:
        waiting = [call for call in self.state.calls if call.waits]
        for call in waiting[:1]:
            call.state = "cancelled"
            self.db.execute("UPDATE dispatcher_callqueue SET state = 'cancelled' WHERE id = %s", [call.id])
            self._note(call.lane, is_forced=True, position=call.position)

    def _change_limits(self) -> None:
        if not self.state.keys:
            return
        key = self.rnd.choice([*self.state.keys.values()])
        key.limits.concurrency = self.rnd.choice([None, 1, 2, 4])
        key.is_paused = self.rnd.random() < 0.1
        key.is_observed = self.rnd.random() < 0.2
        self.db.execute(
            "UPDATE dispatcher_ratelimitkey SET concurrency = %s, is_paused = %s, is_observed = %s WHERE id = %s",
            [key.limits.concurrency, key.is_paused, key.is_observed, key.id],
        )
        self._note(None, key.id)
        if self.rnd.random() < 0.5:
            self._change_turns(key)
            return
        for lane in self.state.lanes.values():
            if key.id in lane.key_ids:
                self._note(lane.id, is_forced=True)

    def _change_turns(self, key: reference.Key) -> None:
        """Let the turns of a key go to others; those that wait are noted by the database itself, by its own clock."""
        reference.change_turns(self.state, key, self.rnd.choice([None, "t:*", "k*"]), self.now)
        self.db.execute("UPDATE dispatcher_ratelimitkey SET fair_by = %s WHERE id = %s", [key.fair_by, key.id])
        self.db.execute("UPDATE dispatcher_note SET at = %s WHERE at > now() - interval '1 minute'", [time(self.now)])


def different(there: Any, here: Any) -> list[Any]:
    """Return what the database and the reference hold differently."""
    return [(id, there.get(id), here.get(id)) for id in {*there, *here} if there.get(id) != here.get(id)]


def random_tuning(rnd: Random) -> Tuning:
    """Return durations."""
    horizon, margin = rnd.choice([(5 * MILLISECOND, 30 * MILLISECOND), (200 * MILLISECOND, 50 * MILLISECOND)])
    return Tuning(
        horizon=horizon,
        margin=margin,
        keep=rnd.choice([20 * MILLISECOND, 500 * MILLISECOND]),
        silence=rnd.choice([SECOND, 60 * SECOND]),
        ahead=rnd.choice([2, 5, 10_000]),
        needs_worker=rnd.random() < 0.3,
        any_delivery=rnd.random() < 0.5,
    )


def random_trip(rnd: Random, state: reference.State, now: int, tuning: Tuning) -> Trip:
    """Return a trip of a worker, of a dispenser, or of none that is known."""
    pick = rnd.choice
    worker = pick([None, *WORKERS])
    queues = state.workers[worker].queues if worker in state.workers else rnd.sample(QUEUES, rnd.randint(1, 3))
    if queues and rnd.random() < 0.3:
        queues = queues[:1]
    becomes = pick(["active"] * 4 + ["dispatched"]) if worker else "dispatched"
    held = [call for call in state.calls if call.state == "active"]
    is_weighted = rnd.random() < 0.3
    process = worker and pick(PROCESSES[worker])
    return Trip(
        now=now,
        worker=worker,
        process=process,
        queues=queues,
        tasks=pick([None, ["t"], ["t"], ["t", "new"]]),
        room=pick([0, 1, 1, 2, 4]),
        becomes=becomes,
        publish=pick([0, 0, 1, 3]),
        # A process may have lost its mark, and not know yet.
        is_marked=process in state.processes and rnd.random() < 0.5,
        may_rest=process is not None and rnd.random() < 0.7,
        keys=[pick([*state.keys, 98])] if rnd.random() < 0.2 else [],
        ends=[_random_end(rnd, call) for call in held if rnd.random() < 0.5],
        due=[pick([0, 1, 5]) for _ in queues] if is_weighted else None,
        stride=[pick([2, 3, 6]) for _ in queues] if is_weighted else None,
        is_strict=rnd.random() < 0.1,
        # Without a worker the broker chooses the worker, so only its own queues may be dispatched.
        tuning=replace(
            tuning,
            any_delivery=tuning.any_delivery and worker is not None,
            notes=pick([None, None, now - 50 * MILLISECOND, now - 2 * SECOND]),
        ),
    )


def _random_end(rnd: Random, call: reference.Call) -> End:
    state, wait = rnd.choice([("completed", None)] * 4 + [("retryable", 500 * MILLISECOND), ("available", None)])
    return End(call=call, state=state, wait=wait, is_stale=rnd.random() < 0.05)
