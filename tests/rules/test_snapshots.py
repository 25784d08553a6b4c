"""While an old snapshot is held, what is gone is not cleaned up: a trip must not read it again and again."""

from typing import Any, Final
from uuid import UUID

import psycopg
import pytest

from tests.db_admin import connect
from tests.rules.reference import MILLISECOND, SECOND, Call, End, Key, Lane, Limits, Note, State, Trip, Tuning
from tests.rules.systems import TABLES, WORKERS, add_call, add_note, call_take, load, take_statement

TRIPS: Final = 3_000
QUEUE: Final = "a"


class Trips:
    """Trips of one worker, 10 ms apart: each ends a call of one lane and starts the next one."""

    def __init__(self, db: psycopg.Connection, *, waiting: int) -> None:
        self.db, self.now, self.sent = db, 0, 0
        self.ends: list[End] = []
        self.state = State(deliveries={QUEUE: "direct"})
        self.state.keys[1] = Key(id=1, name="k", limits=Limits(concurrency=9), override=Limits())
        self.state.lanes[1] = Lane(id=1, queue=QUEUE, priority=0, on_limit="wait", key_ids=[1])
        self.state.calls = [self._call() for _ in range(waiting)]
        # Not the rows of earlier tests that are gone, for which a trip early on would read more: 140 buffers, not 86.
        db.execute(f"TRUNCATE {', '.join(f'dispatcher_{table}' for table in TABLES)} CASCADE")
        load(db, self.state)
        db.execute("SELECT setseed(0)")  # by which hints are written

    def _call(self) -> Call:
        self.sent += 1
        return Call(id=UUID(int=self.sent), lane=1, task="t", position=self.sent)

    def send(self) -> None:
        """Send a call, with the note for its lane."""
        with self.db.transaction():
            add_call(self.db, self.state, call := self._call())
            add_note(self.db, Note(self.now, 1, None, position=call.position))

    def _trip(self) -> Trip:
        young = Tuning(notes=self.now - SECOND)
        return Trip(now=self.now, worker=WORKERS[0], queues=[QUEUE], tasks=None, room=1, ends=self.ends, tuning=young)

    def make(self) -> None:
        """Make one."""
        self.now += 10 * MILLISECOND
        started, last = call_take(self.db, self._trip())
        assert len(last.ended) == len(self.ends)
        self.ends = [End(call=Call(id=started.id, lane=1, task="t"), state="completed")]

    def buffers(self) -> int:
        """Return how many buffers one reads and writes, without planning it: autovacuum may ask for that any moment."""
        return min(self._buffers() for _ in range(3))

    def _buffers(self) -> int:
        with self.db.transaction(force_rollback=True):
            self.now += 10 * MILLISECOND
            text, values = take_statement(self.db, self._trip())
            ((answer,),) = self.db.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", values).fetchall()
        plan = answer[0]["Plan"]
        assert plan["Actual Rows"] == 2, "nothing starts"
        return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def _after(db: psycopg.Connection, *, is_sent: bool, is_held: bool) -> int:
    """Return the buffers of a trip after many, which a snapshot has seen none of if one is held."""
    trips = Trips(db, waiting=0 if is_sent else TRIPS + 100)

    def make(times: int) -> None:
        for _ in range(times):
            if is_sent:
                trips.send()
            trips.make()

    with connect() as other, other.transaction():
        if is_held:
            other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            other.execute("SELECT FROM dispatcher_lane")
        make(TRIPS)
        db.execute("ANALYZE")  # plans made after it take what is gone for little
        make(20)
        if is_sent:
            trips.send()
        return trips.buffers()


@pytest.mark.server
@pytest.mark.parametrize(
    ("is_sent", "most"), [(False, 1.15), (True, 1.25)], ids=["a hot lane", "a lane that sleeps in between"]
)
def test_a_trip_reads_no_more_after_many_under_a_snapshot(
    db: psycopg.Connection, *, is_sent: bool, most: float
) -> None:
    """Compared with as many trips without one: by 3,000 calls most indexes have two levels, whatever is held.

    A hot lane reads 102 buffers beside 95, one that sleeps 112 to 114 beside 97. The difference: second levels of
    call_waiting, slot_key and note_at, which keep what is gone, and some ten pages with rows that are gone (calls since
    `waits_from`, slots since `slots_from`).
    """
    free, held = (_after(db, is_sent=is_sent, is_held=is_held) for is_held in (False, True))
    assert held <= free * most, (free, held)


def test_a_lane_that_is_served_alone_is_hardly_written(db: psycopg.Connection) -> None:
    """Whatever snapshot is held: a lane that sleeps is served from its note, and one that is ready as it is."""

    def versions(trips: Trips, *, is_sent: bool) -> set[Any]:
        seen = set()
        for _ in range(60):
            if is_sent:
                trips.send()
            trips.make()
            seen |= {*db.execute("SELECT ctid FROM dispatcher_lanesite").fetchall()}
        return seen

    assert len(versions(Trips(db, waiting=100), is_sent=False)) <= 2
    assert len(versions(Trips(db, waiting=0), is_sent=True)) <= 3
