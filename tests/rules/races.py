"""Workers, a dispenser, senders and users' transactions at once, for some seconds; and what they may not have done.

What starts and ends is logged by triggers of the test, which know nothing of the text of `take`.
"""

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from queue import Empty, SimpleQueue
from typing import Any
from uuid import UUID, uuid4

import psycopg

from dispatcher.sql.functions import installed_name
from tests import sessions
from tests.rules.reference import MILLISECOND, SECOND, Tuning
from tests.rules.systems import TABLES, back, tuning_row

S = timedelta(seconds=1)
QUEUES = {"a": "direct", "b": "direct", "c": "broker"}
KEYS: dict[int, dict[str, Any]] = {
    1: {"name": "one", "concurrency": 1},
    2: {"name": "three", "concurrency": 3},
    3: {"name": "window", "rate_limit": 20, "rate_period": S},
    4: {"name": "throttle", "throttle_limit": 50, "throttle_period": S},
    5: {"name": "worker", "concurrency": 2, "per_worker": 1},
    6: {"name": "both", "rate_limit": 30, "rate_period": 2 * S, "concurrency": 4},
    **{n: {"name": f"g:{n}", "concurrency": 1} for n in range(10, 15)},
    20: {"name": "g:*", "concurrency": 4},
}
LANES = 30
TUNING = Tuning(slack=0, paced_slack=0, margin=20 * MILLISECOND)
"""The starts that are checked are those that are recorded, so nothing begins later."""
LOG = """
DROP SCHEMA IF EXISTS checker CASCADE;
CREATE SCHEMA checker;
CREATE TABLE checker.log (seq bigserial, at timestamptz DEFAULT clock_timestamp(), call_id uuid, key_id bigint,
    cost int, worker uuid, started_at timestamptz, delta int);
CREATE FUNCTION checker.log_slot() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  held bigint;
BEGIN
  IF TG_OP = 'DELETE' THEN
    INSERT INTO checker.log (call_id, key_id, cost, worker, delta)
    VALUES (OLD.call_id, OLD.key_id, OLD.cost, OLD.worker_id, -1);
    RETURN NULL;
  END IF;
  INSERT INTO checker.log (call_id, key_id, cost, worker, started_at, delta)
  VALUES (NEW.call_id, NEW.key_id, NEW.cost, NEW.worker_id, NEW.started_at, (TG_OP = 'INSERT')::int);
  SELECT sum(slot.cost) INTO held FROM public.dispatcher_slot AS slot WHERE slot.key_id = NEW.key_id;
  IF held > (SELECT key.concurrency FROM public.dispatcher_ratelimitkey AS key WHERE key.id = NEW.key_id) THEN
    RAISE EXCEPTION 'key % holds %', NEW.key_id, held;
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER checker_log AFTER INSERT OR DELETE OR UPDATE OF started_at ON public.dispatcher_slot
    FOR EACH ROW EXECUTE FUNCTION checker.log_slot();
"""


@dataclass
class Race:
    """One race: what the threads share."""

    connect: Callable[[], psycopg.Connection]
    seconds: float
    seed: int
    published: SimpleQueue[tuple[UUID, UUID]] = field(default_factory=SimpleQueue)
    dispense: threading.Event = field(default_factory=threading.Event)
    notices: dict[UUID, threading.Event] = field(
        default_factory=lambda: {UUID(int=n + 1): threading.Event() for n in range(len(WORKERS))}
    )
    """Of each process."""
    errors: list[str] = field(default_factory=list)
    trips: int = 0
    last_start: float = 0
    until: float = 0
    sent: int = 0

    def run(self) -> None:
        """Let all run at once, and go on until nothing has started for a while."""
        self.until = self.last_start = time.monotonic() + self.seconds
        jobs = [
            *((self.worker, n, queues, room) for n, (queues, room) in enumerate(WORKERS)),
            (self.dispenser, 80),
            *((self.consumer, n) for n in (90, 91)),
            *((self.sender, n) for n in (0, 1)),
            (self.user, 70),
            (self.person, 60),
        ]
        threads = [threading.Thread(target=self._guarded, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    @property
    def is_on(self) -> bool:
        """Return whether there may be something to do."""
        now = time.monotonic()
        return now < self.until or (now < self.last_start + 3 and now < self.until + 60)

    @property
    def is_sending(self) -> bool:
        """Return whether calls are sent, and users are at work."""
        return time.monotonic() < self.until

    def _guarded(self, job: Callable[..., None], n: int, *given: Any) -> None:
        with self.connect() as db:
            try:
                job(db, random.Random(self.seed * 100 + n), n, *given)
            except Exception as error:  # noqa: BLE001 -- reported by the test
                self.errors.append(f"{job.__name__}: {type(error).__name__} {error}")

    # Who takes part.

    def worker(self, db: psycopg.Connection, rnd: random.Random, n: int, queues: list[str], room: int) -> None:
        """Take, run and end; mark itself idle when nothing starts, and look once more."""
        me, notice = UUID(int=n + 1), self.notices[UUID(int=n + 1)]
        held: list[tuple[UUID, UUID, float]] = []
        is_marked, look_at = False, 0.0
        while self.is_on or held:
            now = time.monotonic()
            over = [run for run in held if run[2] <= now]
            if not over and not notice.is_set() and now < look_at:
                time.sleep(0.002)
                continue
            is_marked = is_marked and not notice.is_set()
            notice.clear()
            held = [run for run in held if run not in over]
            free, ends = room - len(held), [(*run[:2], rnd) for run in over]
            marks = {"is_marked": is_marked, "may_rest": free > 0}
            *calls, last = self._take(db, me, queues, free, "active", publish=4, **marks, ends=ends)
            started = [call for call in calls if call.fate is None and call.state == "active"]
            self._publish(call for call in calls if call.fate is None and call.state == "dispatched")
            for call in started:
                wait = max(0.0, (call.start_at - last.at).total_seconds())
                held.append((call.id, call.ticket, now + wait + rnd.choice([0, 0.002, 0.01, 0.05])))
            back = [run for run in over if run[0] in last.locked]
            held += [(*run[:2], now + 0.02) for run in back]
            if "c" in last.publish:
                self.dispense.set()
            look_at = now + 0.5
            if last.again_at is not None:
                look_at = min(look_at, now + max(0.0, (last.again_at - last.at).total_seconds()))
            if started:
                is_marked = False
                if notice.is_set():  # for another call, maybe
                    for queue in queues:
                        self._wake(db, queue)
            elif free and not is_marked and (last.again_at is None or last.again_at > last.at):
                is_marked, look_at = True, 0.0
            else:
                is_marked = is_marked and free > 0

    def dispenser(self, db: psycopg.Connection, _rnd: random.Random, _n: int) -> None:
        """Dispatch the broker's calls and publish them, when asked and twice a second."""
        while self.is_on:
            self.dispense.wait(0.5)
            self.dispense.clear()
            while True:
                *calls, _ = self._take(db, None, ["c"], 8, "dispatched")
                if not self._publish(calls):
                    break

    def consumer(self, db: psycopg.Connection, rnd: random.Random, _n: int) -> None:
        """Claim what was published, and take with its end."""
        while self.is_on or not self.published.empty():
            try:
                call, ticket = self.published.get(timeout=0.1)
            except Empty:
                continue
            claim = uuid4()
            text, values = tuning_row(TUNING)
            statement = (
                f"SELECT start_at, refused, at FROM {installed_name('claim')}(%s, %s, %s, NULL, '2 s', {text}, NULL)"
            )
            row = db.execute(statement, [call, ticket, claim, *values]).fetchone()
            if row is None:
                continue
            start_at, refused, at = row
            if refused is not None:
                self.published.put((call, ticket))
                time.sleep(0.005)
                continue
            time.sleep(max(0.0, (start_at - at).total_seconds()) + rnd.choice([0, 0.005, 0.02]))
            ends = [(call, ticket, rnd)]
            while ends:
                *calls, last = self._take(db, None, ["c"], 2, "dispatched", ends=ends, claim=claim)
                self._publish(calls)
                ends = ends if call in last.locked else []

    def sender(self, db: psycopg.Connection, rnd: random.Random, n: int) -> None:
        """Send to lanes of its own; sometimes roll back, or die before it has woken anyone."""
        while self.is_sending:
            lane, count = rnd.randrange(1 + n, LANES + 1, 2), rnd.randint(1, 5)
            costs = [rnd.choice([1, 1, 1, 2])] * 3 if lane > 2 and rnd.random() < 0.4 else None
            with db.transaction() as transaction:
                db.execute(SEND, {"lane": lane, "count": count, "costs": costs})
                if rnd.random() < 0.1:
                    time.sleep(0.01)
                is_back = rnd.random() < 0.1
                if is_back:
                    raise psycopg.Rollback(transaction)
            if not is_back:
                self.sent += count
                if rnd.random() < 0.9:
                    queue = "abc"[lane % 3]
                    self._wake(db, queue)
                    if queue == "c":
                        self.dispense.set()
            time.sleep(rnd.random() * 0.06)

    def user(self, db: psycopg.Connection, rnd: random.Random, _n: int) -> None:
        """Keep a row locked for a while."""
        while self.is_sending:
            table, column, top = rnd.choice(
                [
                    ("ratelimitkey", "id", 6),
                    ("lane", "id", LANES),
                    ("lanesite", "lane_id", LANES),
                    ("note", "key_id", 6),
                ]
            )
            with db.transaction():
                db.execute(
                    f"SELECT FROM dispatcher_{table} WHERE {column} = %s FOR UPDATE SKIP LOCKED", [rnd.randint(1, top)]
                )
                time.sleep(rnd.random() * 0.15)
            time.sleep(0.1)

    def _wake(self, db: psycopg.Connection, queue: str) -> None:
        text = f"SELECT {installed_name('wake')}(%s, NULL, NULL, '30 s', clock_timestamp())"
        self._notify(process for (process,) in db.execute(text, [queue]) if process)

    def _notify(self, processes: Iterable[UUID]) -> None:
        for process in processes:
            self.notices[process].set()

    def person(self, db: psycopg.Connection, rnd: random.Random, _n: int) -> None:
        """Let a call go to the front of its lane; commit at once, or a little later."""
        while self.is_sending:
            with db.transaction():
                db.execute(MOVE, {"lane": rnd.randint(1, LANES), "is_forced": rnd.random() < 0.5})
                time.sleep(rnd.choice([0, 0, 0.005, 0.03]))
            time.sleep(rnd.random() * 0.03)

    def _publish(self, calls: Any) -> bool:
        started = [call for call in calls if call.fate is None]
        for call in started:
            self.published.put((call.id, call.ticket))
        return bool(started)

    def _take(
        self,
        db: psycopg.Connection,
        worker: UUID | None,
        queues: list[str],
        room: int,
        becomes: str,
        *,
        publish: int = 0,
        is_marked: bool = False,
        may_rest: bool = False,
        ends: Sequence[Any] = (),
        claim: UUID | None = None,
    ) -> list[Any]:
        # Workers read young notes alone; the dispenser reads them all, as a tick does.
        since = None if worker is None else (back(datetime.now(UTC)) or 0) - SECOND
        text, values = tuning_row(replace(TUNING, notes=since))
        states = [rnd.choice(["completed"] * 8 + ["available"]) for *_, rnd in ends]
        nothing = [None] * len(ends)
        arrays = [[end[0] for end in ends], [end[1] for end in ends], [claim] * len(ends), states]
        statement = (
            f"SELECT * FROM {installed_name('take')}(%s::uuid, %s::text[], NULL, %s::int, %s::text, %s::int, %s::uuid,"
            " %s::bool, %s::bool, false, '{}'::bigint[], %s::uuid[], %s::uuid[], %s::uuid[],"
            " %s::text[], %s::text[], %s::smallint[], %s::jsonb[], %s::jsonb[], %s::interval[],"
            f" NULL, NULL, false, {text}, NULL)"
        )
        given = [
            worker,
            queues,
            room,
            becomes,
            publish,
            worker,
            is_marked,
            may_rest,
            *arrays,
            nothing,
            nothing,
            nothing,
            nothing,
            nothing,
        ]
        with db.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
            rows = cursor.execute(statement, [*given, *values]).fetchall()
        self._notify(rows[-1].wake)
        self.trips += 1
        if any(row.fate is None for row in rows[:-1]):
            self.last_start = max(self.last_start, time.monotonic())
        return rows


WORKERS = [(["a", "b"], 4), (["b"], 1), (["a"], 8), (["a", "b"], 16)]
SEND = """
WITH sent AS (
    INSERT INTO dispatcher_callqueue (id, lane_id, queue, priority, on_limit, task, args, kwargs, meta, costs, errors,
                                      key_costs, state, attempt)
    SELECT gen_random_uuid(), lane.id, lane.queue, lane.priority, lane.on_limit, 't', '[]', '{}', '{}', '{}', '[]',
           %(costs)s::int[], 'available', 0
      FROM dispatcher_lane AS lane, generate_series(1, %(count)s)
     WHERE lane.id = %(lane)s
    RETURNING lane_id, position)
INSERT INTO dispatcher_note (at, lane_id, position)
SELECT clock_timestamp(), lane_id, min(position) FROM sent GROUP BY lane_id
"""
MOVE = """
WITH moved AS (
    UPDATE dispatcher_callqueue
       SET position = LEAST(0, (SELECT min(position) FROM dispatcher_callqueue)) - 1
     WHERE id = (SELECT id FROM dispatcher_callqueue
                  WHERE lane_id = %(lane)s AND state = 'available'
                  ORDER BY position DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED)
    RETURNING lane_id, position)
INSERT INTO dispatcher_note (at, lane_id, is_forced, position)
SELECT clock_timestamp(), lane_id, %(is_forced)s, position FROM moved
"""
"""As who lets a call run now, or as who commits late."""


def prepare(db: psycopg.Connection, seed: int) -> None:
    """Make keys, lanes and workers, and the log."""
    rnd = random.Random(seed)
    for table in TABLES:
        db.execute(f"DELETE FROM dispatcher_{table}")
    for id, limits in KEYS.items():
        names = ["id", "is_paused", *limits]
        marks = ", ".join(["%s"] * len(names))
        db.execute(
            f"INSERT INTO dispatcher_ratelimitkey ({', '.join(names)}) VALUES ({marks})", [id, False, *limits.values()]
        )
    for name, delivery in QUEUES.items():
        db.execute(
            "INSERT INTO dispatcher_queue (name, delivery, on_full, warn_at) VALUES (%s, %s, 'reject', 0.8)",
            [name, delivery],
        )
    kinds = set()
    for id in range(1, LANES + 1):
        while True:
            keys = [1] if id <= 2 else sorted(rnd.sample([1, 2, 3, 4, 5, 6, 20], rnd.randint(0, 2)))
            keys = [key for key in keys if key != 5 or id % 3 != 2]  # no limits per worker through the broker
            kind = ("abc"[id % 3], rnd.choice([0, 0, 0, 3]), keys)
            if (*kind[:2], *keys) not in kinds:
                break
        kinds.add((*kind[:2], *keys))
        db.execute(
            "INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids) VALUES (%s, %s, %s, 'wait', %s)",
            [id, *kind],
        )
    for n, (queues, _) in enumerate(WORKERS):
        db.execute(
            "INSERT INTO dispatcher_worker (id, name, host, pid, pool, processes, queues, started_at, seen_at,"
            " serves_until) VALUES (%s, 'w', 'h', 1, 'prefork', 1, %s, now(), now() + '1 hour', now() + '1 hour')",
            [UUID(int=n + 1), queues],
        )
        id = UUID(int=n + 1)
        db.execute("INSERT INTO dispatcher_process (id, worker_id, queues) VALUES (%s, %s, %s)", [id, id, queues])
        sessions.begin(id)
    db.execute(LOG)


@contextmanager
def logged(db: psycopg.Connection, seed: int) -> Iterator[None]:
    """Log what happens to slots, and take the log away again."""
    prepare(db, seed)
    try:
        yield
    finally:
        db.execute("DROP SCHEMA checker CASCADE")


def faults(db: psycopg.Connection) -> list[str]:
    """Return which limits were exceeded, which calls were passed, and what is left."""
    found = []
    starts = db.execute(
        "SELECT key_id, call_id, cost, started_at FROM checker.log WHERE started_at IS NOT NULL ORDER BY started_at"
    ).fetchall()
    for id, limits in KEYS.items():
        mine = [(at, cost) for key, _, cost, at in starts if key == id]
        found += _crowded(id, limits, mine) + _close(id, limits, mine)
    found += [f"worker held {held} of key 5" for (held,) in db.execute(HELD_BY_WORKER)]
    found += [f"call {id} of lane {lane} was passed" for lane, id in db.execute(PASSED)]
    found += [f"{n} calls of lane {lane} at {place} are left" for lane, place, n in db.execute(LEFT)]
    found += [f"{n} {state}" for state, n in db.execute(IN_FLIGHT)]
    found += [f"slots {n}" for (n,) in db.execute("SELECT count(*) FROM dispatcher_slot HAVING count(*) > 0")]
    return found


def _crowded(id: int, limits: dict[str, Any], starts: list[tuple[datetime, int]]) -> list[str]:
    if "rate_limit" not in limits:
        return []
    crowds = [(at, sum(c for t, c in starts[n:] if t < at + limits["rate_period"])) for n, (at, _) in enumerate(starts)]
    return [f"key {id}: {cost} from {at} on" for at, cost in crowds if cost > limits["rate_limit"]]


def _close(id: int, limits: dict[str, Any], starts: list[tuple[datetime, int]]) -> list[str]:
    if "throttle_limit" not in limits:
        return []
    spacing = limits["throttle_period"] / limits["throttle_limit"]
    pairs = pairwise(starts)
    return [f"key {id}: {later - at} after {cost}" for (at, cost), (later, _) in pairs if later - at < spacing * cost]


HELD_BY_WORKER = """
SELECT max(held) FROM (
    SELECT worker,
           sum(CASE WHEN delta < 0 THEN -cost ELSE delta * cost END) OVER (PARTITION BY worker ORDER BY seq) AS held
      FROM checker.log WHERE key_id = 5) AS each
HAVING max(held) > 1
"""
PASSED = """
SELECT lane_id, id FROM (
    SELECT call.lane_id, call.id, call.position,
           max(call.position) OVER (PARTITION BY call.lane_id ORDER BY first.seq
                                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM dispatcher_callqueue AS call
      JOIN (SELECT call_id, min(seq) AS seq FROM checker.log WHERE delta >= 0 GROUP BY 1) AS first
        ON first.call_id = call.id
     WHERE call.position > 0                          -- not those that were moved up
     ) AS each
 WHERE position < before
"""
LEFT = """
SELECT site.lane_id, site.place, count(*)
  FROM dispatcher_callqueue AS call JOIN dispatcher_lanesite AS site ON site.lane_id = call.lane_id
 WHERE call.state = 'available' AND call.oversized_key_id IS NULL
 GROUP BY 1, 2
"""
IN_FLIGHT = "SELECT state, count(*) FROM dispatcher_callqueue WHERE state IN ('dispatched', 'active') GROUP BY 1"
