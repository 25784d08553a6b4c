"""What a statement reads: its generic plan, as it was run. Buffers are counted, not time."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

from django.db import connection, transaction

from dispatcher import sql

MARGIN: Final = timedelta(milliseconds=50)
LEASE: Final = timedelta(seconds=60)
ALONE: Final = ("SET LOCAL plan_cache_mode = force_generic_plan",)
TUNE: Final = sql.statement("tune").text.replace("$2", "NULL")
PASS: Final = (TUNE.replace("$1", "false"),)
UNSORTED: Final = (TUNE.replace("$1", "true"),)
"""What is set before a statement: by itself; in a transaction of the engine's own; in one without sorts."""

_NONE: Final = timedelta(0)
TUNING: Final = sql.record(
    [MARGIN, _NONE, _NONE, _NONE, MARGIN, *[LEASE] * 4, None, LEASE, LEASE, 1_000, False, False, False]
)
"""See functions/tuning.sql."""

USUAL: Final[dict[str, Any]] = {
    **{key: [] for key in ("keys", "queues", "resting", "ids", "deliveries", "calls", "tickets", "claims")},
    **{key: [] for key in ("states", "reasons", "crashes", "results", "errors", "waits")},
    **dict.fromkeys(("now", "call", "wait", "due", "strides", "expires_in", "until", "passed_after", "slots"), None),
    "tuning": TUNING,
    "slack": _NONE,
    **dict.fromkeys(("headers", "options", "retry", "expires_at", "args", "kwargs"), None),
    **dict.fromkeys(("lease", "ramp", "publish_after", "after_restart", "silence", "grace"), LEASE),
    **dict.fromkeys(("soon", "overdue", "long", "gap", "most_ahead"), LEASE),
    **dict.fromkeys(("margin", "late", "horizon"), MARGIN),
    **dict.fromkeys(
        (
            "is_marked",
            "may_rest",
            "is_pulled",
            "is_strict",
            "is_eager",
            "needs_worker",
            "serves_http",
        ),
        False,
    ),
    **dict.fromkeys(("worker", "process", "ticket", "claim"), uuid4()),
    **dict.fromkeys(("priority", "after", "publish", "lane", "key"), 0),
    **dict.fromkeys(("most_lanes", "most_keys"), 100),
    "queue": "direct",
    "task": "noop",
    "tasks": ["noop"],
    "becomes": "active",
    "free": 2,
    "room": 1,
    "most": 500,
    "ahead": 1_000,
    "looked_at": 5_000,
    "unused": timedelta(days=30),
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
        return [
            self.given[name] if name != "now" else self.given.get(name) for name in sql.statement(self.name).parameters
        ]


def hot(name: str, most: int, before: Sequence[str] = ALONE, /, **given: Any) -> Hot:
    """Return a statement, as a line of a table: with the parameters that are not the usual ones."""
    return Hot(name, most, before, USUAL | given)


def ends(call: UUID) -> dict[str, Any]:
    """Return how the attempt of a call ends whose ticket and claim are its id."""
    given = {"states": ["completed"], "crashes": [0], "results": ["1"]}
    return (
        {key: [call] for key in ("calls", "tickets", "claims")}
        | {key: [None] for key in ("reasons", "errors", "waits")}
        | given
    )


def kinds(*names: str, queue: str = "direct") -> str:
    """Return kinds of calls that spend one key each."""
    usual = {"priority": 0, "on_limit": "wait", "placement": {}, "queue": queue, "soonest": "-infinity"}
    return json.dumps([usual | {"number": number, "names": [name]} for number, name in enumerate(names)])


def bulk(*names: str, queue: str = "direct") -> dict[str, Any]:
    """Return the parameters that send a call for each of the keys."""
    usual: dict[str, Any] = {"task": "noop", "is_pending": False, "args": [], "kwargs": {}, "meta": {}, "costs": {}}
    drafts = [usual | {"kind": at, "id": str(uuid4())} for at in range(len(names))]
    return {"kinds": kinds(*names, queue=queue), "drafts": json.dumps(drafts)}


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
    """Hold a statement to its bound, and return its plan.

    The first run plans what functions do, and marks the rows as dead that other tests have left.
    """
    explain(tried)
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
