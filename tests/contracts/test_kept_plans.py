"""A plan that was made while the tables were empty, and is kept while they fill up, reads what it touches all the same.

PostgreSQL plans a kept statement again only after the next ANALYZE, which autovacuum starts once a minute.
"""

import json
from typing import Any

import pytest
from django.db import connection, transaction

from dispatcher import sql
from tests.contracts.plans import Hot, nodes, outline
from tests.contracts.test_plans import ADMIT, EMPTY, HOT, START, WEIGHTED

pytestmark = pytest.mark.server

MOST = 500
# 20,000 calls wait, 2,000 are admitted, 2,000 run.
FILL = """
SELECT setval(pg_get_serial_sequence(name, 'id'), 10000)
  FROM unnest(ARRAY['dispatcher_lane', 'dispatcher_ratelimitkey']) AS serial (name);

INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, is_paused)
SELECT n, 'key:' || n, 1, false FROM generate_series(1, 5000) AS n;

INSERT INTO dispatcher_queue (name, delivery, on_full, warn_at) VALUES ('direct', 'direct', 'reject', 0.8);

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids, is_held, is_awake, parked_on_id)
SELECT n, 'direct', 0, 'wait', ARRAY[n], n % 3 = 0, n % 3 = 1, CASE WHEN n % 3 = 2 THEN n END
  FROM generate_series(1, 5000) AS n;

INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, ticket, claim,
        dispatched_at, published_at, started_at)
SELECT gen_random_uuid(), 1 + n % 5000, 'noop', '[]', '{}', '{}', 'direct', 0, 'wait', '{}',
       CASE WHEN n <= 20000 THEN 'available' WHEN n % 2 = 0 THEN 'dispatched' ELSE 'active' END, 0, '[]',
       CASE WHEN n > 20000 THEN gen_random_uuid() END, CASE WHEN n > 20000 AND n % 2 = 1 THEN gen_random_uuid() END,
       CASE WHEN n > 20000 THEN now() END, CASE WHEN n > 20000 THEN now() END,
       CASE WHEN n > 20000 AND n % 2 = 1 THEN now() END
  FROM generate_series(1, 24000) AS n;

INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until)
SELECT id, 1 + row_number() OVER () % 5000, 1, now() + interval '1 minute'
  FROM dispatcher_callqueue
 WHERE state IN ('dispatched', 'active');
"""
CHOSEN = {"dispatcher.chosen": "{1,2,3,4}", "dispatcher.locked": "{1,2,3,4}"}
STATEMENTS = [
    *(
        hot
        for hot in HOT
        if hot.name.startswith(("finish_and_choose", "hand_over", "finish_calls", "start_calls", "lock_released"))
    ),
    Hot("admit_released", ADMIT, 600, is_tuned=True, settings=dict.fromkeys(CHOSEN, "{2}")),
    Hot("start_chosen", START, 600, is_tuned=True, settings=CHOSEN),
    Hot("start_chosen_by_weight", START | WEIGHTED, 600, is_tuned=True, settings=CHOSEN),
]


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("hot", STATEMENTS, ids=str)
@pytest.mark.parametrize("session", ["tune", "tune_feed"])
def test_a_plan_kept_from_empty_tables_reads_what_it_touches(hot: Hot, session: str) -> None:
    statement = sql.statement(hot.name)
    values = [hot.params[name] for name in statement.parameters]
    run = f"EXECUTE kept({', '.join(['%s'] * len(values))})"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(EMPTY)
        tune = sql.statement(session)
        cursor.execute(tune.text.replace("$1", "true"))
        for name, value in hot.settings.items():
            cursor.execute("SELECT set_config(%s, %s, true)", [name, value])
        cursor.execute(f"PREPARE kept AS {statement.text}")
        cursor.execute(run, values)
        cursor.execute(FILL)
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {run}", values)
        (answer,) = cursor.fetchone()
        cursor.execute("DEALLOCATE kept")
        transaction.set_rollback(True)
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    assert [node for node in nodes(plan) if rows_read(node) > MOST] == [], outline(plan)


def rows_read(node: dict[str, Any]) -> float:
    """Return how many rows a scan read, those that it left out included."""
    left_out = sum(value for name, value in node.items() if name.startswith("Rows Removed by"))
    return float((node["Actual Rows"] + left_out) * node["Actual Loops"])
