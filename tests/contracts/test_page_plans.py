"""What people look at costs what a page shows: the rows that pages and lists read, in tables that are full and skewed.

Rows are counted, not time: those that each part of a plan reads, and those that it reads and leaves out.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from dispatcher import sql
from dispatcher.admin.base import MANY
from dispatcher.models import CallQueue
from dispatcher.ojs.workflow import advance
from tests.contracts.test_plans import Hot, explain, nodes, outline

ENDED = 200_000
MOST = 25_000
"""The most rows that one part of a plan may read: a bounded count, or the lanes."""
LISTED = 75_000
"""The most where queues are listed: three counts up to 1,000 of each."""

# Calls, from the oldest to the newest: 20,000 wait in 10,000 lanes, 40,000 are due at one instant, 5 are retryable, 5
# pending, 100 in flight, 50 discarded; 200,000 have ended well, in 24 queues: whatever is rare is behind all of these.
FILL = """
INSERT INTO dispatcher_ratelimitkey (id, name, concurrency, is_paused)
SELECT n, 'key:' || n, 1, false FROM generate_series(1, 10000) AS n;

INSERT INTO dispatcher_queue (name, delivery, max_depth, on_full, warn_at)
SELECT 'queue-' || n, 'http', 1000000, 'reject', 0.8 FROM generate_series(1, 24) AS n;

INSERT INTO dispatcher_ojs_pullworker (id, name, queues, seen_at)
SELECT gen_random_uuid(), 'worker-' || n, ARRAY['queue-1'], now() FROM generate_series(1, 1000) AS n;

INSERT INTO dispatcher_lane (id, queue, priority, on_limit, key_ids, parked_on_id)
SELECT n, 'queue-' || 1 + n % 24, 0, 'wait', ARRAY[1, 1 + n], CASE WHEN n <= 10000 THEN 1 END
  FROM generate_series(1, 12000) AS n;

INSERT INTO dispatcher_callqueue
       (id, lane_id, task, args, kwargs, meta, queue, priority, on_limit, costs, state, attempt, errors, reason, retry,
        scheduled_at, ticket, dispatched_at, started_at, finished_at, is_awaited, error)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 1 + n % 10000,
       CASE WHEN n % 100000 = 7 THEN 'rare' ELSE 'noop' END, '[]', '{}', '{}',
       CASE WHEN state = 'scheduled' THEN 'queue-1' ELSE 'queue-' || 1 + (1 + n % 10000) % 24 END, 0, 'wait',
       '{}', state, 0, '[]',
       CASE WHEN state = 'discarded' THEN CASE WHEN n % 2 = 0 THEN 'failed' ELSE 'poison' END END,
       CASE WHEN state = 'discarded' THEN '{"on_exhaustion": "dead_letter"}'::jsonb END,
       CASE WHEN state IN ('scheduled', 'retryable') THEN timestamptz '2040-01-01' END,
       CASE WHEN state = 'active' THEN gen_random_uuid() END,
       CASE WHEN state = 'active' THEN now() END, CASE WHEN state IN ('active', 'completed') THEN now() END,
       CASE WHEN state IN ('completed', 'discarded') THEN now() - (400000 - n) * interval '1 millisecond' END,
       state = 'available', CASE WHEN state = 'retryable' THEN '{"type": "E"}'::jsonb END
  FROM (SELECT n, CASE WHEN n <= 20000 THEN 'available'
                       WHEN n <= 60000 THEN 'scheduled'
                       WHEN n <= 60005 THEN 'retryable'
                       WHEN n <= 60010 THEN 'pending'
                       WHEN n <= 60110 THEN 'active'
                       WHEN n <= 60160 THEN 'discarded'
                       ELSE 'completed' END AS state
          FROM generate_series(1, 60160 + %s) AS n) AS numbered;

INSERT INTO dispatcher_slot (call_id, key_id, cost, lease_until, worker_id, pulled_until)
SELECT id, 1, 1, now() + interval '1 hour', gen_random_uuid(), now() + interval '1 hour'
  FROM dispatcher_callqueue WHERE state = 'active';

INSERT INTO dispatcher_ojs_workflow (id, name, kind, state, plan, callbacks, results)
SELECT ('00000000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, 'w', 'chain', 'running', '[{}]', '{}', '{}'
  FROM generate_series(1, 20000) AS n;

INSERT INTO dispatcher_ojs_part (workflow_id, role, place, call, outcome)
SELECT ('00000000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, 'step', 0,
       ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'open'
  FROM generate_series(1, 20000) AS n;

INSERT INTO dispatcher_ojs_eventlogentry (kind, queue, data, at)
SELECT CASE WHEN n <= 5 THEN 'queue.paused' ELSE 'rate_limit.exceeded' END, 'queue-1',
       jsonb_build_object('key', 'key:' || n, 'job_id', n), timestamptz '2030-01-01' + n * interval '1 second'
  FROM generate_series(1, 100000) AS n
"""
TABLES = """dispatcher_callqueue, dispatcher_lane, dispatcher_ratelimitkey, dispatcher_slot, dispatcher_queue,
            dispatcher_ojs_pullworker, dispatcher_ojs_workflow, dispatcher_ojs_part, dispatcher_ojs_eventlogentry"""


@pytest.fixture(scope="module", autouse=True)
def _full(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Fill the tables, and empty them again."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        with transaction.atomic():
            cursor.execute("SET LOCAL synchronous_commit = off")
            cursor.execute(f"TRUNCATE {TABLES} CASCADE")
            for statement in FILL.split(";\n"):
                cursor.execute(statement.replace("%s", str(ENDED)))
        cursor.execute(f"VACUUM ANALYZE {TABLES}")
        yield
        cursor.execute(f"TRUNCATE {TABLES} CASCADE")


def most_read(plan: dict[str, Any]) -> int:
    """Return how many rows the part of a plan reads that reads most, with those that it leaves out."""
    return max(
        round(
            (node["Actual Rows"] + node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0))
            * node["Actual Loops"]
        )
        for node in nodes(plan)
    )


def run(look: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Return the plans of all statements on the dispatcher's tables that a look asks."""
    named: list[Hot] = []
    ask = sql.ask

    def note(name: str, row: type[Any], params: Any) -> Any:
        named.append(Hot(name, params, 0))
        return ask(name, row, params)

    with monkeypatch.context() as patch, CaptureQueriesContext(connection) as asked:
        patch.setattr(sql, "ask", note)
        look()
    plans = [explain(hot, mode) for hot in named for mode in ("force_custom_plan", "force_generic_plan")]
    with connection.cursor() as cursor:
        for query in asked.captured_queries:
            if '"dispatcher_' in query["sql"] and query["sql"].startswith("SELECT"):
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query['sql']}")
                (reply,) = cursor.fetchone()
                plans.append((json.loads(reply) if isinstance(reply, str) else reply)[0]["Plan"])
    return plans


def check(plans: list[dict[str, Any]], most: int = MOST) -> None:
    assert plans
    for plan in plans:
        assert most_read(plan) <= most, outline(plan)


ADMIN = [
    "callqueue/",
    *(f"callqueue/?state={state}" for state in ("available", "oversized", "scheduled", "retryable", "pending")),
    *(f"callqueue/?state={state}" for state in ("dispatched", "active", "completed", "cancelled", "discarded")),
    "callqueue/?state=completed&p=100",
    *(f"callqueue/?reason={reason}" for reason in ("failed", "poison", "expired")),
    "callqueue/?q=key:5",
    "callqueue/?q=key:1",
    "callqueue/?q=rare",
    "callqueue/?q=rare&state=completed",
    "callqueue/?o=2",
    f"callqueue/{UUID(int=0x7000_8000_0000_0000_0001)}/change/",
    "ratelimitkey/",
    "ratelimitkey/?is_paused__exact=1",
    "ratelimitkey/1/change/",
    "queue/",
    "pullworker/",
    "worker/",
    "apitoken/",
    "eventlogentry/",
    "eventlogentry/?kind=queue.paused",
    "eventlogentry/?q=key:5",
    f"eventlogentry/?q={UUID(int=5)}",
]


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("page", ADMIN)
def test_a_page_of_the_admin_reads_a_bounded_number_of_rows(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))

    def look() -> None:
        assert client.get(f"/admin/dispatcher/{page}").status_code == 200

    check(run(look, monkeypatch))


HTTP = [
    "/queues",
    "/queues/queue-1/stats",
    "/dead-letter",
    "/dead-letter?queue=queue-3&type=rare",
    "/dead-letter/stats",
    "/admin/stats",
    "/admin/queues",
    "/admin/queues/queue-1",
    "/admin/scheduling/stats",
    "/admin/workers?per_page=200",
    "/admin/jobs",
    "/admin/jobs?offset=10000",
    "/admin/jobs?queue=queue-3",
    "/admin/jobs?queue=nowhere",
    "/admin/jobs?type=rare",
    "/admin/jobs?since=2020-01-01T00:00:00Z&until=2021-01-01T00:00:00Z",
    *(f"/admin/jobs?state={state}" for state in ("available", "scheduled", "retryable", "pending", "active")),
    *(f"/admin/jobs?state={state}" for state in ("completed", "cancelled", "discarded")),
    "/admin/jobs?state=completed&queue=queue-3",
    "/admin/jobs?state=completed&queue=nowhere",
    "/admin/jobs?state=completed&type=rare",
    "/admin/jobs?state=discarded&queue=queue-3&type=rare",
]


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize("path", HTTP)
def test_a_page_over_http_reads_a_bounded_number_of_rows(
    path: str, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.DISPATCHER = {"http_anonymous": ["admin"], "event_retention": 3_600}
    reply: list[dict[str, Any]] = []

    def look() -> None:
        answer = Client().get(f"/ojs/v1{path}")
        assert answer.status_code == 200, answer.content
        reply.append(answer.json())

    check(run(look, monkeypatch), LISTED if path in ("/admin/queues", "/admin/scheduling/stats") else MOST)
    if cursor := reply[0].get("pagination", {}).get("next_cursor"):
        path += f"{'&' if '?' in path else '?'}cursor={cursor}"
        check(run(look, monkeypatch))


@pytest.mark.django_db(transaction=False)
def test_counts_end_at_their_bound(settings: Settings) -> None:
    settings.DISPATCHER = {"http_anonymous": ["admin"]}
    stats = Client().get("/ojs/v1/admin/stats").json()
    assert (stats["jobs"]["completed"], stats["jobs"]["available"], stats["jobs"]["retryable"]) == (MANY, MANY, 5)
    queue = Client().get("/ojs/v1/admin/queues/queue-1").json()
    calls = CallQueue.objects.filter(queue="queue-1")
    exact = {state: calls.filter(state=state).count() for state in ("available", "completed", "discarded")}
    assert {state: queue["counts"][state] for state in exact} == exact
    assert queue["counts"]["scheduled"] == MANY
    (first, *_) = Client().get("/ojs/v1/admin/queues").json()["items"]
    assert first["counts"] | {"completed": 1_000, "scheduled": 1_000} == first["counts"]


CHANGES = [
    ("POST", "/admin/jobs/bulk/retry", {"filter": {"queue": "queue-3"}}),
    ("POST", "/admin/jobs/bulk/cancel", {"filter": {"type": "noop"}}),
    ("POST", "/admin/jobs/bulk/delete", {"filter": {"state": "completed"}}),
    ("DELETE", "/admin/queues/queue-1/jobs", {"states": ["scheduled", "completed"]}),
    ("DELETE", "/admin/queues/queue-3/jobs", {"states": ["available", "discarded"]}),
    ("DELETE", "/admin/queues/nowhere/jobs", {"states": ["available", "completed", "pending"]}),
]


@pytest.mark.django_db(transaction=False)
@pytest.mark.parametrize(("method", "path", "wanted"), CHANGES)
def test_a_change_of_many_jobs_reads_a_bounded_number_of_rows(
    method: str, path: str, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    settings.DISPATCHER = {"http_anonymous": ["admin"]}

    def look() -> None:
        body = json.dumps({**wanted, "confirm": True})
        answer = Client().generic(method, f"/ojs/v1{path}", body, content_type="application/json")
        assert answer.status_code == 200, answer.content

    check(run(look, monkeypatch))


@pytest.mark.django_db(transaction=False)
def test_workflows_without_news_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = run(lambda: advance.advance_all() == 0, monkeypatch)
    for plan in plans:
        assert most_read(plan) <= 250, outline(plan)


@pytest.mark.django_db(transaction=False)
def test_a_look_at_workflows_reads_their_calls_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE dispatcher_callqueue SET state = 'completed', finished_at = now() WHERE id < %s",
            [UUID(int=0x7000_8000_0000_0000_0100)],
        )
    monkeypatch.setattr(advance, "_BUDGET_S", 60.0)
    found: list[int] = []
    plans = run(lambda: found.append(advance.advance_all()), monkeypatch)
    assert found == [255]
    for plan in plans:
        assert most_read(plan) <= 1_000, outline(plan)
