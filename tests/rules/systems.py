"""Random systems for test_take: in memory and in the database, and what the database then holds."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from dispatcher.sql.functions import installed_name
from tests import sessions
from tests.rules.reference import (
    SECOND,
    Call,
    Claim,
    Key,
    Lane,
    Limits,
    Note,
    Process,
    Slot,
    Start,
    State,
    Trip,
    Tuning,
    Worker,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BEGIN = 100 * SECOND
QUEUES = ["a", "b", "c", "d"]
WORKERS = [UUID(int=n) for n in range(1, 5)]
PROCESSES = {worker: [UUID(int=10 * worker.int + n) for n in (1, 2)] for worker in WORKERS}
"""Of each worker."""
TABLES = [
    "callqueue",
    "lane",
    "lanesite",
    "slot",
    "start",
    "note",
    "block",
    "share",
    "process",
    "ratelimitkey",
    "queue",
    "worker",
]
LIMITS = ["concurrency", "per_worker", "rate_limit", "rate_period", "throttle_limit", "throttle_period"]


def span(value: int | None) -> timedelta | None:
    """Return a duration as the database has it."""
    return None if value is None else timedelta(microseconds=value)


def time(value: float | None) -> datetime | str | None:
    """Return a time as the database has it."""
    return None if value is None else "infinity" if value == float("inf") else EPOCH + timedelta(microseconds=value)


def back(value: datetime | None) -> int | None:
    """Return a time of the database as the reference has it."""
    return None if value is None else (value - EPOCH) // timedelta(microseconds=1)


def random_system(rnd: Random) -> State:
    """Make a system with NULL wherever a column may hold it."""
    pick = rnd.choice
    state = State()

    def limits() -> Limits:
        rate, throttle = pick([None, None, 3, 6]), pick([None, None, None, 20, 7, 3, 15_000])
        return Limits(
            concurrency=pick([None, 1, 1, 2, 3, 5, pick([0, 1])]),
            per_worker=pick([None, None, None, 1, 2]),
            rate_limit=rate,
            rate_period=rate and pick([SECOND, 3 * SECOND]),
            throttle_limit=throttle,
            throttle_period=throttle and pick([SECOND, 2 * SECOND]),
        )

    names = [f"k{n}" for n in range(rnd.randint(0, 4))]
    if rnd.random() < 0.4:
        names += ["g:*", *(f"g:{n}" for n in range(rnd.randint(0, 4)))]
        names += ["g:1*"] if rnd.random() < 0.2 else []
    fair = pick([0, 0, 0.5, 1])
    names += [f"t:{n}" for n in range(rnd.randint(1, 3))] if fair else []
    names += [f"queue:{queue}" for queue in QUEUES if rnd.random() < 0.2]
    rnd.shuffle(names)
    for id, name in enumerate(names, 1):
        state.keys[id] = Key(
            id=id,
            name=name,
            limits=Limits() if name.endswith("*") and rnd.random() < 0.6 else limits(),
            override=limits(),
            override_until=pick([None, None, None, BEGIN + SECOND // 2, BEGIN + 3 * SECOND]),
            is_paused=rnd.random() < 0.05,
            fair_by=pick(["t:*", "t:*", "k*"]) if rnd.random() < fair else None,
            weight=pick([1, 1, 2, 3]),
            is_observed=rnd.random() < 0.2,
            blocked_until=pick([None, None, None, BEGIN + SECOND, BEGIN - 2 * SECOND, BEGIN - 7 * SECOND]),
        )
    deliveries = {queue: pick(["direct", "direct", "direct", "broker", "http", None]) for queue in QUEUES}
    state.deliveries = {queue: delivery for queue, delivery in deliveries.items() if delivery is not None}
    _add_lanes(rnd, state)
    _add_workers(rnd, state)
    state.notes += [Note(at, None, key.id) for key in state.keys.values() if (at := key.override_until) is not None]
    return state


def _add_lanes(rnd: Random, state: State) -> None:
    pick = rnd.choice
    ids = [id for id, key in state.keys.items() if not key.name.startswith("g:") or key.is_group or rnd.random() < 0.5]
    ids += [99] if rnd.random() < 0.1 else []  # a key that was deleted
    kinds = set()
    most_keys = pick([1, 1, 2, 3])
    for id in range(1, rnd.randint(3, 12)):
        named = sorted(rnd.sample(ids, rnd.randint(0, min(most_keys, len(ids)))))
        lane = Lane(
            id=id,
            queue=pick(QUEUES),
            priority=pick([0, 0, 0, 5]),
            on_limit=pick(["wait"] * 5 + ["drop", "reschedule"]),
            key_ids=_apart(state, named),
        )
        kind = (lane.queue, lane.priority, lane.on_limit, *lane.key_ids)
        if kind in kinds:
            continue
        kinds.add(kind)
        state.lanes[id] = lane
        for n in range(rnd.randint(0, 7)):
            state.calls.append(random_call(rnd, state, lane, n))


def _add_workers(rnd: Random, state: State) -> None:
    pick = rnd.choice
    for id in WORKERS[: pick([0, 1, 2, 3, 4, 4])]:
        queues = rnd.sample(QUEUES, rnd.randint(1, 3))
        state.workers[id] = Worker(
            queues=queues,
            tasks=pick([None, ["t"], ["t", "new"]]),
            seen_at=pick([BEGIN, BEGIN + 60 * SECOND, BEGIN + 60 * SECOND, 0]),
            serves_until=pick([BEGIN + 2 * SECOND, BEGIN + 60 * SECOND]),
            is_gone=rnd.random() < 0.05,
        )
        for process in PROCESSES[id]:
            if rnd.random() < 0.7:
                idle_at = pick([None, BEGIN - 7, BEGIN - 7, BEGIN - 3])
                state.processes[process] = Process(
                    worker=id, queues=queues, idle_at=idle_at, is_over=rnd.random() < 0.1
                )
    if rnd.random() < 0.2:  # a fetch that waits, of a worker that is not known
        state.processes[UUID(int=9)] = Process(worker=None, queues=rnd.sample(QUEUES, 2), idle_at=BEGIN - 5)


def _apart(state: State, ids: list[int]) -> list[int]:
    """Return these keys without those that a group of the same call may choose: a send refuses such."""
    prefixes = {id: state.keys[id].name.rstrip("*") for id in ids if id in state.keys and state.keys[id].is_group}
    return [
        id
        for id in ids
        if id not in state.keys
        or not any(state.keys[id].name.startswith(prefix) for group, prefix in prefixes.items() if group != id)
    ]


def random_call(rnd: Random, state: State, lane: Lane, n: int) -> Call:
    """Make the next call of a lane, some positions after the last one."""
    pick = rnd.choice
    costs = [pick([1, 1, 2, 3, None, 6]) for _ in range(len(lane.key_ids) + pick([0, 1]))]
    return Call(
        id=UUID(int=1000 * lane.id + n),
        lane=lane.id,
        position=max((call.position for call in state.calls), default=0) + pick([1, 1, 30, 70]),
        task=pick(["t"] * 12 + ["new"]),
        key_costs=None if rnd.random() < 0.6 else costs,
        is_revoked=rnd.random() < 0.03,
        expires_at=pick([None] * 15 + [BEGIN + SECOND // 2]),
        returns=pick([0, 0, 0, 2]),
    )


def load(db: psycopg.Connection, state: State) -> None:
    """Write a system to the empty tables."""
    for table in TABLES:
        db.execute(f"DELETE FROM dispatcher_{table}")
    _load_keys(db, state)
    _load_lanes(db, state)
    _load_workers(db, state)
    for note in state.notes:
        add_note(db, note)


def _load_keys(db: psycopg.Connection, state: State) -> None:
    has_groups = any(key.name.endswith("*") for key in state.keys.values())
    for key in state.keys.values():
        # As if another transaction had kept the key locked: who locks it next writes the block.
        is_apart = key.blocked_until is not None and key.id % 2 == 0 and not has_groups
        if is_apart:
            _insert(db, "block", {"key_id": key.id, "until": time(key.blocked_until)})
        columns = {
            "id": key.id,
            "name": key.name,
            "is_paused": key.is_paused,
            "blocked_until": None if is_apart else time(key.blocked_until),
            "override_until": time(key.override_until),
            "fair_by": key.fair_by,
            "weight": key.weight,
            "is_observed": key.is_observed,
            "limited_at": EPOCH,
        }
        for name in LIMITS:
            for prefix, limits in (("", key.limits), ("override_", key.override)):
                value = getattr(limits, name)
                columns[prefix + name] = span(value) if name.endswith("period") else value
        _insert(db, "ratelimitkey", columns)


def _load_lanes(db: psycopg.Connection, state: State) -> None:
    for name, delivery in state.deliveries.items():
        _insert(db, "queue", {"name": name, "delivery": delivery, "on_full": "reject", "warn_at": 0.8})
    for lane in state.lanes.values():
        kind = {"id": lane.id, "queue": lane.queue, "priority": lane.priority, "on_limit": lane.on_limit}
        _insert(db, "lane", {**kind, "key_ids": lane.key_ids})
    db.execute("UPDATE dispatcher_lanesite SET place = 0")
    for call in state.calls:
        add_call(db, state, call)


def _load_workers(db: psycopg.Connection, state: State) -> None:
    for id, worker in state.workers.items():
        columns = {"id": id, "name": "w", "host": "h", "pid": 1, "pool": "prefork", "processes": 1}
        columns |= {"queues": worker.queues, "tasks": worker.tasks, "started_at": EPOCH}
        columns |= {"seen_at": time(worker.seen_at), "serves_until": time(worker.serves_until)}
        _insert(db, "worker", {**columns, "stopped_at": EPOCH if worker.is_gone else None})
    for id, mark in state.processes.items():
        columns = {"worker_id": mark.worker, "queues": mark.queues, "idle_at": time(mark.idle_at)}
        _insert(db, "process", {"id": id, **columns})
    for process in (process for processes in PROCESSES.values() for process in processes):
        is_over = process in state.processes and state.processes[process].is_over
        (sessions.end if is_over else sessions.begin)(process)


def add_call(db: psycopg.Connection, state: State, call: Call) -> None:
    """Write a call."""
    lane = state.lanes[call.lane]
    columns = {"id": call.id, "position": call.position, "lane_id": lane.id, "queue": lane.queue, "task": call.task}
    columns |= {"priority": lane.priority}
    columns |= {"on_limit": lane.on_limit, "key_costs": call.key_costs, "state": call.state, "attempt": call.attempt}
    columns |= {"is_revoked": call.is_revoked, "expires_at": time(call.expires_at), "returns": call.returns}
    empty = {"args": Jsonb([]), "kwargs": Jsonb({}), "meta": Jsonb({}), "costs": Jsonb({}), "errors": Jsonb([])}
    _insert(db, "callqueue", columns | empty)


def add_note(db: psycopg.Connection, note: Note) -> None:
    """Write a note."""
    columns = {"at": time(note.at), "lane_id": note.lane, "key_id": note.key, "is_forced": note.is_forced}
    columns["position"] = note.position
    _insert(db, "note", columns)


def _insert(db: psycopg.Connection, table: str, columns: dict[str, Any]) -> None:
    names = sql.SQL(", ").join(map(sql.Identifier, columns))
    values = sql.SQL(", ").join([sql.Placeholder()] * len(columns))
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})")
    db.execute(statement.format(sql.Identifier(f"dispatcher_{table}"), names, values), [*columns.values()])


def held_in_memory(state: State) -> dict[str, Any]:
    """Return what the reference holds, to be compared."""
    return {
        "calls": {
            call.id: (
                call.state,
                call.attempt,
                call.returns,
                call.oversized,
                call.reason,
                call.scheduled_at,
                call.started_at if call.state == "active" else None,
                call.finished_at,
                call.chosen if call.state in ("active", "dispatched") else None,
            )
            for call in state.calls
        },
        "slots": Counter(state.slots),
        "starts": Counter((key, start) for key, starts in state.starts.items() for start in starts),
        "lanes": {
            lane.id: (lane.place, lane.served_at, lane.last_served_at, lane.kept_until, lane.waits_from)
            for lane in state.lanes.values()
        },
        "shares": {tuple(line): turn for line, turn in state.shares.items()},
        "notes": Counter(state.notes),
        "processes": {id: (mark.worker, mark.queues, mark.idle_at) for id, mark in state.processes.items()},
    }


def held_in_database(db: psycopg.Connection) -> dict[str, Any]:
    """Return what the database holds, in the terms of the reference."""

    def rows(statement: str) -> list[Any]:
        return db.execute(statement).fetchall()

    calls = rows(
        "SELECT id, state, attempt, returns, oversized_key_id, oversized_cost, reason, scheduled_at, started_at,"
        " finished_at, chosen_keys::text FROM dispatcher_callqueue"
    )
    return {
        "calls": {
            row[0]: (
                *row[1:4],
                None if row[4] is None else row[4:6],
                row[6],
                back(row[7]),
                back(row[8]) if row[1] == "active" else None,
                back(row[9]),
                json.loads(row[10]) if row[10] and row[1] in ("active", "dispatched") else None,
            )
            for row in calls
        },
        "slots": Counter(
            Slot(*row[:4], back(row[4]))
            for row in rows("SELECT call_id, key_id, cost, worker_id, started_at FROM dispatcher_slot")
        ),
        "starts": Counter(
            (row[0], Start(back(row[1]) or 0, *row[2:6], row[6] and row[6] // timedelta(microseconds=1), back(row[7])))
            for row in rows(
                "SELECT key_id, at, total, cost, last_cost, delayed, longest, allowed_at FROM dispatcher_start"
            )
        ),
        "lanes": {
            row[0]: (row[1], back(row[2]), back(row[3]), float("inf") if row[4] else back(row[5]), row[6])
            for row in rows(
                "SELECT lane_id, place, served_at, last_served_at, COALESCE(kept_until = 'infinity', false),"
                " NULLIF(kept_until, 'infinity'), waits_from FROM dispatcher_lanesite"
            )
        },
        "shares": {row[:3]: row[3] for row in rows("SELECT key_id, priority, share_id, next FROM dispatcher_share")},
        "notes": Counter(
            Note(back(row[0]) or 0, *row[1:])
            for row in rows("SELECT at, lane_id, key_id, is_forced, position FROM dispatcher_note")
        ),
        "processes": {
            row[0]: (*row[1:3], back(row[3]))
            for row in rows("SELECT id, worker_id, queues, idle_at FROM dispatcher_process")
        },
    }


def tuning_row(tuning: Tuning) -> tuple[str, list[Any]]:
    """Return the text of a tuning, and its values."""
    durations = ["horizon", "lead", "slack", "paced_slack", "margin", "ramp", "later", "keep", "silence"]
    values = [
        *(span(getattr(tuning, name)) for name in durations),
        time(tuning.notes),
        *(span(tuning.lease), span(tuning.dispatch_lease)),
        *(tuning.ahead, tuning.needs_worker, tuning.any_delivery, False),
    ]
    fields = ["%s::interval"] * len(durations) + ["%s::timestamptz", "%s::interval", "%s::interval"]
    fields += ["%s::int", "%s::bool", "%s::bool", "%s::bool"]
    return f"ROW({', '.join(fields)})::{installed_name('tuning')}", values


def call_claim(db: psycopg.Connection, claim: Claim) -> Any:
    """Claim a call that was dispatched; return the row, or None."""
    (ticket,) = db.execute("SELECT ticket FROM dispatcher_callqueue WHERE id = %s", [claim.call.id]).fetchone()
    text, values = tuning_row(claim.tuning)
    statement = f"SELECT * FROM {installed_name('claim')}(%s, %s, %s, %s, %s::interval, {text}, %s)"
    given = [claim.call.id, ticket, UUID(int=7), claim.worker, span(claim.ahead), *values, time(claim.now)]
    with db.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
        return cursor.execute(statement, given).fetchone()


def call_take(db: psycopg.Connection, trip: Trip) -> list[Any]:
    """Make the trip in the database, and return its rows, those of starts in their order."""
    with db.cursor(row_factory=psycopg.rows.namedtuple_row) as cursor:
        rows: list[Any] = cursor.execute(*take_statement(db, trip)).fetchall()
    return [*sorted(rows[:-1], key=lambda row: row.turn or 0), rows[-1]]


def take_statement(db: psycopg.Connection, trip: Trip) -> tuple[str, list[Any]]:
    """Return the text of the trip in the database, and its values."""
    holders: dict[Any, Any] = {}
    if trip.ends:
        found = db.execute(
            "SELECT id, ticket, claim FROM dispatcher_callqueue WHERE id = ANY (%s)", [[e.call.id for e in trip.ends]]
        )
        holders = {row[0]: row[1:] for row in found}
    ends = [
        (
            end.call.id,
            UUID(int=0) if end.is_stale else holders[end.call.id][0],
            holders[end.call.id][1],
            end.state,
            end.reason,
            None,
            Jsonb({"n": 1}) if end.state == "completed" else None,
            Jsonb({"type": "Error"}) if end.state == "retryable" else None,
            span(end.wait),
        )
        for end in trip.ends
    ]
    arrays = [list(each) for each in zip(*ends, strict=True)] or [[] for _ in range(9)]
    text, values = tuning_row(trip.tuning)
    statement = (
        f"SELECT * FROM {installed_name('take')}(%s::uuid, %s::text[], %s::text[], %s::int, %s::text, %s::int,"
        " %s::uuid, %s::bool, %s::bool, false, %s::bigint[], %s::uuid[], %s::uuid[], %s::uuid[],"
        " %s::text[], %s::text[], %s::smallint[], %s::jsonb[], %s::jsonb[], %s::interval[],"
        f" %s::bigint[], %s::bigint[], %s::bool, {text}, %s::timestamptz)"
    )
    given = [trip.worker, trip.queues, trip.tasks, trip.room, trip.becomes, trip.publish]
    given += [trip.process, trip.is_marked, trip.may_rest, trip.keys]
    weights = [trip.due, trip.stride, trip.is_strict]
    return statement, [*given, *arrays, *weights, *values, time(trip.now)]
