"""The HTTP API, by Django's test client: every list and number, and what workers and people send."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

from django.test import Client

from bench.figures import ensure
from bench.scale.calls import sent
from bench.scale.compare import Operation, Order, Page, Task
from bench.scale.systems import System
from dispatcher.models import CallQueue
from dispatcher.ojs import pull_workers
from dispatcher.ojs.models import Workflow

TYPE = "application/openjobspec+json"
JOB = {"type": "mail.send", "args": [], "options": {"queue": "q23"}}
PAGES = (
    "/health",
    "/queues",
    "/queues/q00/stats",
    "/queues/q23/stats",
    "/dead-letter",
    "/dead-letter?queue=q00",
    "/dead-letter/stats",
    "/rate-limits",
    "/rate-limits/tenant:1",
    "/rate-limits/tenant:2",
    "/events",
    "/events?types=job.completed",
    "/events?queues=q00",
    "/cron",
    "/admin/stats",
    "/admin/queues",
    "/admin/queues/q00",
    "/admin/jobs",
    "/admin/jobs?page=100",
    "/admin/jobs?state=completed",
    "/admin/jobs?state=available",
    "/admin/jobs?state=active",
    "/admin/jobs?queue=q00",
    "/admin/jobs?queue=q23",
    "/admin/jobs?type=bench.scale.tasks.task_1",
    "/admin/jobs?type=bench.*",
    "/admin/workers",
    "/admin/dead-letter",
    "/admin/dead-letter/stats",
    "/admin/pools",
    "/admin/scheduling/stats",
)
"""Every address that is read, but for single jobs, workflows and workers."""
WORKER = "fetcher-1"


def reading() -> Iterator[Task]:
    """Yield what is read: pages of a bounded number of rows."""
    for path in PAGES:
        yield Page(f"GET {path}", do=partial(_get_always, path))
    for path in ("/jobs/ID", "/jobs/ID/progress", "/admin/jobs/ID"):
        yield Page(f"GET {path}", do=_get, prepare=partial(_of_a_call, path))
    for path in (f"/admin/workers/{WORKER}", f"/workers/{WORKER}/health"):
        yield Page(f"GET {path}", do=_get, prepare=partial(_of_worker, path))
    yield Page("GET /workflows/ID", do=_get, prepare=_of_a_workflow)


def writing() -> Iterator[Task]:
    """Yield what clients and workers send."""
    bounded = {**JOB, "options": {"queue": "q00", "keys": ["tenant:3"]}}
    yield Operation("POST /jobs", do=lambda _: _ask("POST", "/jobs", JOB))
    yield Operation("POST /jobs, to the largest queue, which is bounded", do=lambda _: _ask("POST", "/jobs", bounded))
    yield Operation("POST /jobs, unique", do=lambda body: _ask("POST", "/jobs", body), prepare=_unique)
    yield Operation("POST /jobs/batch of 100", do=lambda _: _ask("POST", "/jobs/batch", {"jobs": [JOB] * 100}))
    yield Operation("POST /workers/fetch and /ack", do=lambda _: _work("ack", {}))
    yield Operation("POST /workers/fetch and /nack", do=lambda _: _work("nack", {"error": {"message": "no"}}))
    yield Operation("POST /workers/heartbeat", do=lambda _: _ask("POST", "/workers/heartbeat", {"worker_id": WORKER}))
    yield Operation("DELETE /jobs/ID", do=partial(_ask, "DELETE"), prepare=lambda system: f"/jobs/{sent(system)[0]}")
    yield Operation("POST /workflows", do=lambda _: _ask("POST", "/workflows", {"type": "group", "jobs": [JOB, JOB]}))
    yield Operation("PUT /rate-limits/KEY", do=lambda _: _ask("PUT", "/rate-limits/tenant:3", {"concurrency": 1}))
    yield Operation("DELETE /rate-limits/KEY", do=lambda _: _ask("DELETE", "/rate-limits/tenant:3"))
    yield Operation("POST /queues/NAME/pause and /resume", do=lambda _: _pause_and_resume())


def bulk_http() -> Iterator[Task]:
    """Yield what people order over HTTP for many jobs at once: it returns soon, whatever there is."""
    for action, wanted in (
        ("cancel", {"queue": "q00", "state": "available"}),
        ("cancel", {}),
        ("retry", {"queue": "q00"}),
        ("retry", {}),
        ("delete", {"queue": "q00", "state": "completed"}),
        ("delete", {}),
    ):
        body = {"filter": wanted, "confirm": True}
        filters = " ".join(f"{name}={value}" for name, value in wanted.items()) or "all"
        yield Order(f"bulk {action}: {filters}", do=partial(_order, action, body))
    purge = {"states": ["completed"], "confirm": True}
    yield Order("purge of the largest queue", do=lambda _: _ask("DELETE", "/admin/queues/q00/jobs", purge))


def _ask(method: str, path: str, body: object = None) -> Any:
    raw = json.dumps({} if body is None else body)
    answer = Client(headers={"host": "localhost"}).generic(method, f"/ojs/v1{path}", raw, content_type=TYPE)
    ensure(200 <= answer.status_code < 300, (method, path, answer.status_code, answer.content[:200]))  # noqa: PLR2004
    return json.loads(answer.content) if answer.content else {}


def _get(path: str) -> None:
    _ask("GET", path)


def _get_always(path: str, _: System) -> None:
    _get(path)


def _order(action: str, body: object, _: System) -> None:
    _ask("POST", f"/admin/jobs/bulk/{action}", body)


def _work(verb: str, report: dict[str, Any]) -> None:
    fetched = _ask("POST", "/workers/fetch", {"queues": ["q23"]})
    _ask("POST", f"/workers/{verb}", {"job_id": fetched["jobs"][0]["id"], **report})


def _pause_and_resume() -> None:
    for verb in ("pause", "resume"):
        _ask("POST", f"/queues/q00/{verb}")


_numbers = count()


def _unique(_: System) -> dict[str, Any]:
    return {**JOB, "args": [next(_numbers)], "options": {"queue": "q23", "unique": {"keys": ["type", "args"]}}}


def _of_a_call(path: str, system: System) -> str:
    calls = CallQueue.objects.using(system.alias).filter(lane_id=3)
    return path.replace("ID", str(calls.values_list("pk", flat=True)[:1][0]))


def _of_worker(path: str, _: System) -> str:
    pull_workers.touch_worker(WORKER)
    return path


def _of_a_workflow(system: System) -> str:
    running = Workflow.objects.using(system.alias).filter(state="running")
    return f"/workflows/{running.values_list('pk', flat=True)[:1][0]}"
