"""What a statement reads: its generic plan, as it was run. Buffers are counted, not time."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from django.db import connection, transaction

from dispatcher import sql
from dispatcher.limits.policy import BUCKETS
from dispatcher.states import TERMINAL

MARGIN: Final = timedelta(milliseconds=50)
LEASE: Final = timedelta(seconds=60)
ALONE: Final = ("SET LOCAL plan_cache_mode = force_generic_plan",)
PASS: Final = (sql.statement("tune").text,)
ORDERED: Final = (*PASS, sql.statement("tune_order").text.replace("$1", "'on'"))
UNSORTED: Final = (*PASS, sql.statement("tune_order").text.replace("$1", "'off'"))
FEED: Final = (sql.statement("tune_feed").text.replace("$1", "true"),)
"""What is set before a statement: by itself; in a pass, one that sorts or not; in a step of a feed."""

USUAL: Final[dict[str, Any]] = {
    **{key: [] for key in ("lanes", "keys", "queues", "avoid", "stuck", "resting", "ids")},
    **{key: [] for key in ("asleep", "full", "held", "keys_with_room", "filled")},
    **dict.fromkeys(("now", "wait_for", "lane", "call", "passed_after", "retry_in", "expires_in", "usual"), None),
    **dict.fromkeys(("call_data", "headers", "options", "retry", "reason", "result", "error", "expires_at"), None),
    **dict.fromkeys(("lease", "ramp", "serves", "after_restart", "publish_after", "silence", "grace"), LEASE),
    **dict.fromkeys(("soon", "first", "longest", "overdue", "long", "wait", "gap"), LEASE),
    **dict.fromkeys(("margin", "slack", "lead", "missed", "late"), MARGIN),
    **dict.fromkeys(("needs_worker", "awake", "is_eager", "is_fetch", "is_lost", "only_revoked"), False),
    **dict.fromkeys(("may_park", "may_defer", "is_durable", "is_by_claim", "is_unknown"), True),
    **dict.fromkeys(("worker", "ticket", "claim"), uuid4()),
    **dict.fromkeys(("args", "kwargs", "meta"), "{}"),
    **dict.fromkeys(("priority", "crashes", "after", "place"), 0),
    "queue": "lone",
    "names": ["lone"],
    "task": "noop",
    "tasks": ["noop"],
    "on_limit": "wait",
    "id": UUID(int=1),
    "state": "completed",
    "states": ["scheduled", "retryable"],
    "terminal": [str(state) for state in TERMINAL],
    "waiting": "available",
    "admitted": "dispatched",
    "deliveries": ["broker"],
    "most": 500,
    "room": 2,
    "free": 2,
    "ahead": 1_000,
    "buckets": BUCKETS,
    "lock_wait": 1_000,
    "looked_at": 5_000,
    "unused": timedelta(days=30),
    "retention": timedelta(days=7),
}
"""What each parameter is if a statement's line in a table does not give it."""


@dataclass(frozen=True)
class Hot:
    """A statement, the most buffers that it may touch, what is set before it, and its parameters."""

    name: str
    most: int
    before: Sequence[str]
    given: Mapping[str, Any]

    def __str__(self) -> str:
        return self.name

    def values(self) -> list[Any]:
        """Return the values of its parameters, in their order."""
        return [self.given[name] for name in sql.statement(self.name).parameters]


def hot(name: str, most: int, before: Sequence[str] = ALONE, /, **given: Any) -> Hot:
    """Return a statement, as a line of a table: with the parameters that are not the usual ones."""
    return Hot(name, most, before, USUAL | given)


def chosen(lanes: str, keys: str) -> str:
    """Return what sets the lanes that a statement before it has chosen, and the keys that it has locked."""
    return f"SELECT set_config('dispatcher.chosen', '{lanes}', true), set_config('dispatcher.locked', '{keys}', true)"


def ends(call: UUID) -> dict[str, Any]:
    """Return how the attempt of a call ends whose ticket and claim are its id."""
    given = {"states": ["completed"], "crashes": [0], "results": ["1"]}
    return (
        {key: [call] for key in ("calls", "tickets", "claims")}
        | {key: [None] for key in ("reasons", "errors", "waits")}
        | given
    )


def kinds(*names: str, queue: str | None = None) -> str:
    """Return kinds of calls that spend one key each; without a queue, `key:7` is spent in `queue`."""
    usual = {"priority": 0, "on_limit": "wait", "placement": {}}
    queues = [queue or name.split(":")[0].replace("key", "queue") for name in names]
    given = enumerate(zip(names, queues, strict=True))
    return json.dumps([usual | {"number": n, "queue": queue, "names": [name]} for n, (name, queue) in given])


def bulk(*names: str, queue: str | None = None) -> dict[str, Any]:
    """Return the parameters that send a call for each of the keys."""
    count = len(names)
    absent = (
        *("call_data", "retry", "scheduled_at", "expires_at", "headers", "options", "scheduled_in", "expires_in"),
    )
    return {
        "kinds": kinds(*names, queue=queue),
        "ids": [UUID(int=number) for number in range(1, count + 1)],
        "kind_of": list(range(count)),
        "task": ["noop"] * count,
        "is_pending": [False] * count,
        **dict.fromkeys(("args", "kwargs", "meta", "costs"), ["{}"] * count),
        **dict.fromkeys(absent, [None] * count),
    }


def explained(query: str, values: Sequence[Any] = ()) -> dict[str, Any]:
    """Run a query, and return its plan."""
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", values or None)
        (answer,) = cursor.fetchone()
    plan: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return plan


def prepare(tried: Hot, name: str = "tried") -> str:
    """Prepare a statement after what is set before it, and return the text that executes it."""
    statement = sql.statement(tried.name)
    with connection.cursor() as cursor:
        for text in tried.before:
            cursor.execute(text)
        cursor.execute(f"PREPARE {name} AS {statement.text}")
    places = ", ".join(["%s"] * len(statement.parameters))
    return f"EXECUTE {name}({places})" if places else f"EXECUTE {name}"


def explain(tried: Hot) -> dict[str, Any]:
    """Run a statement, and return its plan; what it changed is rolled back."""
    try:
        with transaction.atomic():
            plan = explained(prepare(tried), tried.values())
            transaction.set_rollback(True)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")
    return plan


def check(tried: Hot) -> dict[str, Any]:
    """Hold a statement to its bound, and return its plan."""
    plan = explain(tried)
    assert buffers(plan) <= tried.most, outline(plan)
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return a plan's node and all that are below it."""
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def read_whole(plan: dict[str, Any]) -> set[str]:
    """Return the tables that a plan reads from their first row to the last."""
    return {node["Relation Name"] for node in nodes(plan) if node["Node Type"] == "Seq Scan"}


def rows_read(node: dict[str, Any]) -> float:
    """Return how many rows a node read, those that it left out included."""
    left_out = sum(value for name, value in node.items() if name.startswith("Rows Removed by"))
    return float((node["Actual Rows"] + left_out) * node["Actual Loops"])


def outline(plan: dict[str, Any], depth: int = 0) -> str:
    """Write a plan for people: what reads what, how often, and the buffers."""
    shown = [plan["Node Type"], plan.get("Relation Name", ""), plan.get("Index Name", "")]
    cost = f"rows {plan.get('Actual Rows')} x {plan.get('Actual Loops')}, buffers {buffers(plan)}"
    lines = [f"{'  ' * depth}{' '.join(filter(None, shown))}: {cost}"]
    return "\n".join(lines + [outline(part, depth + 1) for part in plan.get("Plans", [])])


def buffers(plan: dict[str, Any]) -> int:
    """Return how many buffers it touched."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
