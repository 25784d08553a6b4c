"""The HTTP API, by Django's test client: every list and number, and what workers and people send."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from django.test import Client

from bench.scale.calls import sent
from bench.scale.compare import PER_PAGE, Operation, Order, Task
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
        yield _page(f"GET {path}", partial(_get, path))
    yield _page("GET /jobs/ID", lambda call: _ask("GET", f"/jobs/{call}"), prepare=_a_call)
    yield _page("GET /jobs/ID/progress", lambda call: _ask("GET", f"/jobs/{call}/progress"), prepare=_a_call)
    yield _page("GET /admin/jobs/ID", lambda call: _ask("GET", f"/admin/jobs/{call}"), prepare=_a_call)
    for path in (f"/admin/workers/{WORKER}", f"/workers/{WORKER}/health"):
        yield _page(f"GET {path}", lambda path: _ask("GET", path), prepare=partial(_of_worker, path))
    yield _page("GET /workflows/ID", lambda flow: _ask("GET", f"/workflows/{flow}"), prepare=_a_workflow)


def writing() -> Iterator[Task]:
    """Yield what clients and workers send."""
    bounded = {**JOB, "options": {"queue": "q00", "keys": ["tenant:3"]}}
    yield _call("POST /jobs", lambda _: _ask("POST", "/jobs", JOB))
    yield _call("POST /jobs, to the largest queue, which is bounded", lambda _: _ask("POST", "/jobs", bounded))
    yield _call("POST /jobs, unique", lambda body: _ask("POST", "/jobs", body), prepare=_unique)
    yield _call("POST /jobs/batch of 100", lambda _: _ask("POST", "/jobs/batch", {"jobs": [JOB] * 100}))
    yield _call("POST /workers/fetch and /ack", lambda _: _work("ack", {}))
    yield _call("POST /workers/fetch and /nack", lambda _: _work("nack", {"error": {"message": "no"}}))
    yield _call("POST /workers/heartbeat", lambda _: _ask("POST", "/workers/heartbeat", {"worker_id": WORKER}))
    yield _call("DELETE /jobs/ID", lambda call: _ask("DELETE", f"/jobs/{call}"), prepare=lambda system: sent(system)[0])
    yield _call("POST /workflows", lambda _: _ask("POST", "/workflows", {"type": "group", "jobs": [JOB, JOB]}))
    yield _call("PUT /rate-limits/KEY", lambda _: _ask("PUT", "/rate-limits/tenant:3", {"concurrency": 1}))
    yield _call("DELETE /rate-limits/KEY", lambda _: _ask("DELETE", "/rate-limits/tenant:3"))
    yield _call("POST /queues/NAME/pause and /resume", lambda _: _pause_and_resume())


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
        yield Order(name=f"bulk {action}: {filters}", do=partial(_bulk, f"/admin/jobs/bulk/{action}", body))
    purge = {"states": ["completed"], "confirm": True}
    yield Order(name="purge of the largest queue", do=lambda _: _ask("DELETE", "/admin/queues/q00/jobs", purge))


def _page(
    name: str, do: Callable[[Any], object], prepare: Callable[[System], Any] = lambda system: system
) -> Operation:
    return Operation(name=name, prepare=prepare, do=do, bound=PER_PAGE)


def _call(
    name: str, do: Callable[[Any], object], prepare: Callable[[System], Any] = lambda system: system
) -> Operation:
    return Operation(name=name, prepare=prepare, do=do)


def _ask(method: str, path: str, body: object = None) -> Any:
    raw = json.dumps({} if body is None else body)
    answer = Client(headers={"host": "localhost"}).generic(method, f"/ojs/v1{path}", raw, content_type=TYPE)
    if not 200 <= answer.status_code < 300:  # noqa: PLR2004
        message = f"{method} {path}: {answer.status_code} {answer.content[:200]!r}"
        raise AssertionError(message)
    return json.loads(answer.content) if answer.content else {}


def _get(path: str, system: System) -> None:
    del system
    _ask("GET", path)


def _bulk(path: str, body: object, system: System) -> None:
    del system
    _ask("POST", path, body)


def _work(verb: str, report: dict[str, Any]) -> None:
    fetched = _ask("POST", "/workers/fetch", {"queues": ["q23"]})
    _ask("POST", f"/workers/{verb}", {"job_id": fetched["jobs"][0]["id"], **report})


def _pause_and_resume() -> None:
    for verb in ("pause", "resume"):
        _ask("POST", f"/queues/q00/{verb}")


_numbers: list[None] = []


def _unique(system: System) -> dict[str, Any]:
    del system
    _numbers.append(None)
    return {**JOB, "args": [len(_numbers)], "options": {**JOB["options"], "unique": {"keys": ["type", "args"]}}}  # type: ignore[dict-item]


def _a_call(system: System) -> object:
    return CallQueue.objects.using(system.alias).filter(lane_id=3).values_list("pk", flat=True)[:1][0]


def _of_worker(path: str, system: System) -> str:
    del system
    pull_workers.touch_worker(WORKER)
    return path


def _a_workflow(system: System) -> object:
    return Workflow.objects.using(system.alias).filter(state="running").values_list("pk", flat=True)[:1][0]
