"""What the Open Job Spec's API asks costs what an answer shows: see `pages`; and what a client's call costs."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connection, transaction
from django.test import Client
from pytest_django import Settings

from dispatcher import sql
from dispatcher.admin.base import MANY
from dispatcher.conf import RETENTION
from dispatcher.lifecycle.retention import old
from dispatcher.models import CallQueue, Queue
from dispatcher.ojs import extension as retention
from dispatcher.ojs.enqueue import Bound
from dispatcher.ojs.events import query
from dispatcher.ojs.events.query import EventFilter
from dispatcher.ojs.workflow import advance
from tests.contracts.pages import MOST, full, plans, too_much
from tests.contracts.plans import LEASE, Hot, check, hot, outline, read_whole

pytestmark = [pytest.mark.server, pytest.mark.django_db(transaction=False)]

LISTED: Final = {"/admin/queues": 75_000, "/admin/scheduling/stats": 75_000}
"""Where queues are listed: three counts up to 1,000 of each."""
ADMIN: Final = [
    *("dispatcher_ojs/pullworker/", "dispatcher_ojs/apitoken/"),
    *(f"dispatcher_ojs/eventlogentry/{query}" for query in ("", "?kind=queue.paused", "?q=key:5", f"?q={UUID(int=5)}")),
]
HTTP: Final = [
    *("/queues", "/queues/queue-1/stats", "/dead-letter", "/dead-letter?queue=queue-3&type=rare", "/dead-letter/stats"),
    *("/admin/stats", "/admin/queues", "/admin/queues/queue-1", "/admin/scheduling/stats"),
    *("/admin/workers?per_page=200", "/admin/jobs", "/admin/jobs?offset=10000"),
    *("/admin/jobs?queue=queue-3", "/admin/jobs?queue=nowhere", "/admin/jobs?type=rare"),
    "/admin/jobs?since=2020-01-01T00:00:00Z&until=2021-01-01T00:00:00Z",
    *(f"/admin/jobs?state={state}" for state in ("available", "scheduled", "retryable", "pending", "active")),
    *(f"/admin/jobs?state={state}" for state in ("completed", "cancelled", "discarded")),
    *(f"/admin/jobs?state=completed&{more}" for more in ("queue=queue-3", "queue=nowhere", "type=rare")),
    "/admin/jobs?state=discarded&queue=queue-3&type=rare",
]
CHANGES: Final = [
    ("POST", "/admin/jobs/bulk/retry", {"filter": {"queue": "queue-3"}}),
    ("POST", "/admin/jobs/bulk/cancel", {"filter": {"type": "noop"}}),
    ("POST", "/admin/jobs/bulk/delete", {"filter": {"state": "completed"}}),
    ("DELETE", "/admin/queues/queue-1/jobs", {"states": ["scheduled", "completed"]}),
    ("DELETE", "/admin/queues/queue-3/jobs", {"states": ["available", "discarded"]}),
    ("DELETE", "/admin/queues/nowhere/jobs", {"states": ["available", "completed", "pending"]}),
]
RUNNING: Final = UUID("00000000-0000-7000-8000-00000000ea6b")
HOT: Final = [
    hot("fetchable_queues", 100, queues=["queue-1", "unheard"]),
    hot("mark_waiting", 100, mark=RUNNING, queues=["queue-1", "unheard"]),
    hot("set_fetch_leases", 100, calls=[RUNNING], tickets=[RUNNING], lease=None, usual=LEASE),
    hot("renew_fetch_leases", 100, calls=[RUNNING], lease=None, usual=LEASE),
    hot("find_reserved_call", 30, call=RUNNING),
    hot("fitting_calls", 100, calls=[RUNNING], most=4_000_000),
    hot("lock_overdue", 50),
    hot("queue_bounds", 100, names=None),
    hot("find_unique", 20, unique_key="x", states=["available"], period=None),
    hot("queue_bounds", 20, names=["queue-1"]),
    hot("store_progress", 60, call=RUNNING, attempt=1, progress=0.5, message=None, content=None),
    hot("report_queues", 28_000, queues=["queue-1", "queue-2", "queue-3"], most=1_000, recent=100),
]
LOOKS: Final[dict[str, Callable[[], object]]] = {
    "what happened since": lambda: query.after(EventFilter(), query.now(), 100),
    "the latest": lambda: query.latest(EventFilter(), 100),
    "the latest of some jobs": lambda: query.latest(EventFilter(queues=["queue-1"], tasks=["rare"]), 100),
    "what happened to one job": lambda: query.after(EventFilter(call=RUNNING), "", 100),
}


FILL: Final = """
INSERT INTO dispatcher_ojs_pullworker (id, name, queues, seen_at)
SELECT gen_random_uuid(), 'worker-' || n, ARRAY['queue-1'], now() FROM generate_series(1, 1000) AS n;

-- A job beside each call that waits; a workflow waits for each.
INSERT INTO dispatcher_ojs_job (call_id, created_at, envelope)
SELECT call.id, call.created_at, '{"workflow": {}}' FROM dispatcher_callqueue AS call WHERE call.state = 'available';

INSERT INTO dispatcher_ojs_workflow (id, name, kind, state, plan, callbacks, results)
SELECT ('00000000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, 'w', 'chain', 'running', '[{}]', '{}', '{}'
  FROM generate_series(1, 20000) AS n;

INSERT INTO dispatcher_ojs_part (workflow_id, role, place, call, outcome)
SELECT ('00000000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, 'step', 0,
       ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'open'
  FROM generate_series(1, 20000) AS n;

INSERT INTO dispatcher_eventlogentry (kind, queue, call_id, data, at)
SELECT CASE WHEN n <= 5 THEN 'queue.paused' ELSE 'rate_limit.exceeded' END, 'queue-1', lpad(to_hex(n), 32, '0')::uuid,
       jsonb_build_object('key', 'key:' || n, 'job_id', n), timestamptz '2030-01-01' + n * interval '1 second'
  FROM generate_series(1, 100000) AS n
"""
TABLES: Final = [
    *(f"dispatcher_ojs_{name}" for name in ("job", "pullworker", "workflow", "part")),
    "dispatcher_eventlogentry",
]


@pytest.fixture(scope="module", autouse=True)
def _full(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), full(FILL, *TABLES):
        yield


@pytest.fixture(autouse=True)
def _open(settings: Settings) -> None:
    settings.DISPATCHER = {"http_anonymous": ["admin"], "event_retention": 3_600}


def ask(path: str, method: str = "GET", body: Any = None) -> Any:
    """Return what the API answers."""
    answer = Client().generic(method, f"/ojs/v1{path}", json.dumps(body), content_type="application/json")
    assert answer.status_code == 200, (path, answer.content)
    return answer.json() if answer.content else None


@pytest.mark.parametrize("tried", HOT, ids=str)
def test_a_hot_statement_reads_only_what_it_touches(tried: Hot) -> None:
    check(tried)


def test_a_page_over_http_reads_a_bounded_number_of_rows() -> None:
    offenders = []
    for path in HTTP:
        replies: list[Any] = []
        found = too_much(lambda path=path, replies=replies: replies.append(ask(path)), LISTED.get(path, MOST))
        if cursor := replies[0].get("pagination", {}).get("next_cursor"):
            found += too_much(lambda path=f"{path}{'&' if '?' in path else '?'}cursor={cursor}": ask(path))
        offenders += [f"{path} reads too much:\n{plan}" for plan in found]
    assert not offenders, "\n".join(offenders)


def test_a_page_of_the_admin_reads_a_bounded_number_of_rows() -> None:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    for page in ADMIN:
        assert too_much(lambda page=page: client.get(f"/admin/{page}")) == []


def test_a_change_of_many_jobs_reads_a_bounded_number_of_rows() -> None:
    offenders = []
    for method, path, wanted in CHANGES:
        with transaction.atomic():
            found = too_much(lambda m=method, p=path, w=wanted: ask(p, m, {**w, "confirm": True}))
            transaction.set_rollback(True)
        offenders += [f"{method} {path} reads too much:\n{plan}" for plan in found]
    assert not offenders, "\n".join(offenders)


def test_a_look_at_what_happened_reads_no_table_whole() -> None:
    for name, look in LOOKS.items():
        found = plans(look)
        assert found, name
        assert not [outline(plan) for plan in found if "dispatcher_callqueue" in read_whole(plan)], name


def test_counts_end_at_their_bound() -> None:
    stats = ask("/admin/stats")
    assert (stats["jobs"]["completed"], stats["jobs"]["available"], stats["jobs"]["retryable"]) == (MANY, MANY, 5)
    queue = ask("/admin/queues/queue-1")
    calls = CallQueue.objects.filter(queue="queue-1")
    exact = {state: calls.filter(state=state).count() for state in ("available", "completed", "discarded")}
    assert {state: queue["counts"][state] for state in exact} == exact
    assert queue["counts"]["scheduled"] == MANY
    (first, *_) = ask("/admin/queues")["items"]
    assert first["counts"] | {"completed": 1_000, "scheduled": 1_000} == first["counts"]


def test_a_queue_whose_bound_is_far_above_all_that_waits_need_not_be_counted() -> None:
    """It would be counted under a lock, at each send; here 60,000 wait."""
    Queue.objects.bulk_create([Queue(name=name, max_depth=depth) for name, depth in (("a", 10**4), ("b", 10**9))])
    near, far = sql.fetch("queue_bounds", Bound, {"names": ["a", "b"]})
    assert near.most_waiting >= 60_000
    assert not near.is_far(1)
    assert far.is_far(1_000)
    assert not far.is_far(10**9)


def test_workflows_without_news_are_not_read() -> None:
    assert too_much(lambda: advance.advance_all() == 0, 250) == []


def test_a_look_at_workflows_reads_their_calls_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE dispatcher_callqueue SET state = 'completed', finished_at = now() WHERE id < %s",
            [UUID(int=0x7000_8000_0000_0000_0100)],
        )
    monkeypatch.setattr(advance, "_BUDGET_S", 60.0)
    found: list[int] = []
    assert too_much(lambda: found.append(advance.advance_all()), 1_000) == []
    assert found == [255]


ENDED: Final = """
-- Each hundred of them is one whole with its parts; of the last ten hundreds the whole still runs.
INSERT INTO dispatcher_ojs_workflow (id, name, kind, state, plan, callbacks, results, parent_id, ended_at)
SELECT ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, '', 'chain', 'completed', '[]', '{}', '{}',
       CASE WHEN n % 100 > 0 THEN ('00000000-0000-7000-8000-' || lpad(to_hex(n - n % 100), 12, '0'))::uuid END,
       CASE WHEN n % 100 > 0 OR n < 20000 THEN clock_timestamp() - n * interval '1 hour' END
  FROM generate_series(100, 20999) AS n;
"""


def test_the_cleanup_of_workflows_reads_what_it_deletes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_WORKFLOWS", 2)
    deleted: list[int] = []
    with connection.cursor() as cursor:
        # The statistics say that there is none.
        cursor.execute("TRUNCATE dispatcher_ojs_workflow CASCADE; ANALYZE dispatcher_ojs_workflow, dispatcher_ojs_part")
        cursor.execute(ENDED)
    # None; then two wholes, each with 99 parts of which each is looked for.
    for hours, most in ((900 * 24, 100), (1, 6_000)):
        settings.DISPATCHER = {"retention": dict.fromkeys(RETENTION, timedelta(hours=hours)), "cleanup_budget": 0}
        assert too_much(lambda: deleted.append(retention.delete_workflows()), most) == []
    assert deleted == [0, 200]


ENTRIES: Final = """
INSERT INTO dispatcher_eventlogentry (kind, queue, data, at)
SELECT CASE WHEN n = 7 THEN 'backpressure.warning' ELSE 'rate_limit.exceeded' END, 'queue' || n % 10, '{}',
       clock_timestamp() - n * interval '1 second'
  FROM generate_series(1, 20000) AS n
"""


def test_the_cleanup_of_entries_reads_what_it_deletes(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old, "_BATCH", 100)
    deleted: list[int] = []
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE dispatcher_eventlogentry")
        cursor.execute(ENTRIES)
        cursor.execute("ANALYZE dispatcher_eventlogentry")
    for hours in (24, 1):
        settings.DISPATCHER = {"event_retention": timedelta(hours=hours)}
        assert too_much(lambda: deleted.append(retention.delete_entries(budget=timedelta(0))), 200) == []
    assert deleted == [0, 100]
