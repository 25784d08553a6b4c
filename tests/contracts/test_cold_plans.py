"""What runs now and then costs what it finds: reports of all keys, the cleanup; whatever the statistics say."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction

from dispatcher import sql
from tests.contracts.plans import nodes

KEYS = 2_000

EMPTY = """
TRUNCATE dispatcher_callqueue, dispatcher_lane, dispatcher_ratelimitkey, dispatcher_slot, dispatcher_window CASCADE
"""
TABLES = "dispatcher_ratelimitkey, dispatcher_lane, dispatcher_callqueue, dispatcher_slot, dispatcher_window"
FILL = """
INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, rate_limit, rate_period, is_paused)
SELECT n, 'key:' || n, 5, 5, interval '1 hour', false FROM generate_series(1, %(keys)s) AS n;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids)
SELECT n, 'queue', 0, 'wait', ARRAY[n] FROM generate_series(1, %(keys)s) AS n;

INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors)
SELECT gen_random_uuid(), n, 'noop', '[]', '{}', '{}', 'queue', 0, 'wait', '{}', 'available', 0, '[]'
  FROM generate_series(1, %(keys)s) AS n;

INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
SELECT gen_random_uuid(), n, 1, clock_timestamp() FROM generate_series(1, %(keys)s) AS n;

INSERT INTO dispatcher_window (key_id, place, cost, last_start_at)
SELECT n, part, 1, clock_timestamp() FROM generate_series(1, %(keys)s) AS n, generate_series(1, 3) AS part;
"""


@pytest.fixture
def _rolled_back(db: None) -> Iterator[None]:
    del db
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.mark.usefixtures("_rolled_back")
@pytest.mark.parametrize("is_analyzed", [False, True], ids=["seen empty", "seen full"])
@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_a_report_of_all_keys_reads_nothing_once_for_each_of_them(mode: str, *, is_analyzed: bool) -> None:
    with connection.cursor() as cursor:
        cursor.execute(EMPTY)
        cursor.execute(f"ANALYZE {TABLES}")
        cursor.execute(FILL, {"keys": KEYS})
        if is_analyzed:
            cursor.execute(f"ANALYZE {TABLES}")
    plan = explain("report_keys", {"names": None, "now": None, "margin": timedelta(0)}, mode)
    assert plan["Actual Rows"] == KEYS
    read, *most = max(
        (node["Actual Loops"] * node["Actual Rows"], node["Node Type"], str(node.get("CTE Name")))
        for node in nodes(plan)
        if node.get("CTE Name") != "clock"
    )
    assert read < 10 * KEYS, most


LEFT = """
INSERT INTO dispatcher_queue (name, delivery, max_depth, on_full, warn_at)
SELECT 'queue' || n, 'broker', 1000, 'reject', 0.8 FROM generate_series(0, 9) AS n;

INSERT INTO dispatcher_ojs_eventlogentry (kind, queue, data, at)
SELECT CASE WHEN n = 7 THEN 'backpressure.warning' ELSE 'rate_limit.exceeded' END, 'queue' || n % 10, '{}',
       clock_timestamp() - n * interval '1 second'
  FROM generate_series(1, 20000) AS n;

-- Each hundred of them is one whole with its parts; of the last ten hundreds the whole still runs.
INSERT INTO dispatcher_ojs_workflow (id, name, kind, state, plan, callbacks, results, parent_id, ended_at)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, '', 'chain', 'completed', '[]', '{}', '{}',
       CASE WHEN n % 100 > 0 THEN ('00000000-0000-7000-8000-' || lpad(to_hex(n - n % 100), 12, '0'))::uuid END,
       CASE WHEN n % 100 > 0 OR n < 20000 THEN clock_timestamp() - n * interval '1 hour' END
  FROM generate_series(100, 20999) AS n;
"""


@pytest.mark.usefixtures("_rolled_back")
@pytest.mark.parametrize("is_analyzed", [False, True], ids=["seen empty", "seen full"])
@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize(
    ("name", "params", "most"),
    [
        ("queues_with_backpressure", {}, 100),
        ("delete_workflows", {"retention": timedelta(days=900), "most": 2, "now": None}, 100),
        # Two wholes, each with 99 parts of which each is looked for.
        ("delete_workflows", {"retention": timedelta(hours=1), "most": 2, "now": None}, 6_000),
        ("delete_entries", {"retention": timedelta(days=1), "most": 100, "now": None}, 100),
        ("delete_entries", {"retention": timedelta(hours=1), "most": 100, "now": None}, 1_000),
    ],
    ids=["backpressure", "no workflows", "workflows", "no entries", "entries"],
)
def test_the_cleanup_reads_what_it_deletes(
    name: str, params: dict[str, Any], most: int, mode: str, *, is_analyzed: bool
) -> None:
    tables = "dispatcher_ojs_eventlogentry, dispatcher_ojs_workflow, dispatcher_ojs_part"
    with connection.cursor() as cursor:
        # New files: what another case has rolled back would be read, too.
        cursor.execute(f"TRUNCATE {tables}, dispatcher_queue CASCADE")
        cursor.execute(f"ANALYZE {tables}")
        cursor.execute(LEFT)
        if is_analyzed:
            cursor.execute(f"ANALYZE {tables}")
        if name.startswith("delete_"):
            cursor.execute(sql.statement("tune").text)
            cursor.execute(sql.statement("tune_order").text.replace("$1", "%s"), ["off"])
    plan = explain(name, params, mode)
    read = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert read <= most, [(node["Node Type"], node.get("Index Name"), node["Actual Rows"]) for node in nodes(plan)]


def explain(name: str, params: dict[str, Any], mode: str) -> dict[str, Any]:
    statement = sql.statement(name)
    places = ", ".join(["%s"] * len(statement.parameters))
    with connection.cursor() as cursor:
        cursor.execute(f"SET LOCAL plan_cache_mode = {mode}")
        cursor.execute(f"PREPARE tried AS {statement.text}")
        cursor.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE tried{f'({places})' if places else ''}",
            [params[parameter] for parameter in statement.parameters],
        )
        (answer,) = cursor.fetchone()
        cursor.execute("DEALLOCATE tried")
    plan: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return plan


IN_FLIGHT = """
INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
SELECT gen_random_uuid(), mod(n, %(keys)s) + 1, 1, clock_timestamp() FROM generate_series(1, 20000) AS n
"""


@pytest.mark.usefixtures("_rolled_back")
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("count_key_usage", {"keys": list(range(1, 501)), "margin": timedelta(0), "worker": None}),
        ("recheck", {"full": list(range(1, 501)), "held": [1] * 500}),
        ("sweep_keys", {"after": 0, "most": 500}),
    ],
)
def test_slots_are_counted_by_their_keys_after_a_plan_that_was_made_while_there_were_none(
    name: str, params: dict[str, Any]
) -> None:
    """Two indexes have the key: in one of them it comes second, and each key would cost a read of it all."""
    more = {"asleep": [], "keys_with_room": [], "filled": [], "ahead": 1, "now": None}
    statement = sql.statement(name)
    places = ", ".join(["%s"] * len(statement.parameters))
    values = [{**more, **params}[parameter] for parameter in statement.parameters]
    with connection.cursor() as cursor:
        cursor.execute(EMPTY)
        cursor.execute(FILL, {"keys": KEYS})
        cursor.execute("UPDATE dispatcher_lane SET parked_on_id = id")
        cursor.execute("TRUNCATE dispatcher_slot")
        cursor.execute(f"ANALYZE {TABLES}")
        cursor.execute(sql.statement("tune").text)
        cursor.execute(sql.statement("tune_order").text.replace("$1", "%s"), ["on"])
        cursor.execute(f"PREPARE early_{name} AS {statement.text}")
        cursor.execute(f"EXECUTE early_{name} ({places})", values)
        cursor.execute(IN_FLIGHT, {"keys": KEYS})
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE early_{name} ({places})", values)
        (answer,) = cursor.fetchone()
        cursor.execute(f"DEALLOCATE early_{name}")
    plan: dict[str, Any] = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    read = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert read < 10_000
    compared = max(node["Actual Rows"] * node["Actual Loops"] for node in nodes(plan))
    assert compared <= 20_000, [
        (node["Node Type"], node.get("Index Name"), node["Actual Rows"]) for node in nodes(plan)
    ]
