"""What a statement reads: its plan in either way that PostgreSQL may choose for a prepared statement, as it was run.

Buffers are counted, not time.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.db import connection, transaction

from dispatcher import sql


@dataclass(frozen=True)
class Hot:
    """A statement as the engine runs it, and the most buffers that it may touch."""

    name: str
    params: Mapping[str, Any]
    most: int
    is_tuned: bool = False
    """It runs in a transaction of the engine's own, after `tune`."""
    sorts: str | None = None
    """It runs after `tune_order` as well, with this."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What a statement before it has set for the transaction."""

    def __str__(self) -> str:
        return self.name


def explain(hot: Hot, mode: str) -> dict[str, Any]:
    """Run a statement, and return its plan; what it changed is rolled back."""
    statement = sql.statement(hot.name)
    values = [hot.params[name] for name in statement.parameters]
    try:
        with transaction.atomic(), connection.cursor() as cursor:
            if hot.is_tuned:
                cursor.execute(sql.statement("tune").text)
                if hot.sorts is not None:
                    cursor.execute(sql.statement("tune_order").text.replace("$1", "%s"), [hot.sorts])
            else:
                cursor.execute(f"SET LOCAL plan_cache_mode = {mode}")
            for name, value in hot.settings.items():
                cursor.execute("SELECT set_config(%s, %s, true)", [name, value])
            cursor.execute(f"PREPARE tried AS {statement.text}")
            places = f"({', '.join(['%s'] * len(values))})" if values else ""
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE tried{places}", values)
            (answer,) = cursor.fetchone()
            transaction.set_rollback(True)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DEALLOCATE ALL")
    plan: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return a plan's node and all that are below it."""
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def outline(plan: dict[str, Any], depth: int = 0) -> str:
    """Write a plan for people: what reads what, how often, and the buffers."""
    shown = [plan["Node Type"], plan.get("Relation Name", ""), plan.get("Index Name", "")]
    cost = f"rows {plan.get('Actual Rows')} x {plan.get('Actual Loops')}, buffers {buffers(plan)}"
    lines = [f"{'  ' * depth}{' '.join(filter(None, shown))}: {cost}"]
    return "\n".join(lines + [outline(part, depth + 1) for part in plan.get("Plans", [])])


def buffers(plan: dict[str, Any]) -> int:
    """Return how many buffers it touched."""
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
