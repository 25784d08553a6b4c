"""The addresses of the server that the cases run against: the app's own, and what only the cases need."""

import json

from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import include, path, resolve
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from dispatcher.engine.attempt import retry_while_unavailable
from dispatcher.models import CallQueue
from dispatcher.ojs import pull_workers
from dispatcher.ojs.jobs import job_of

TABLES = (
    *("callqueue", "lane", "lanesite", "slot", "start", "note", "process", "ratelimitkey", "queue", "worker"),
    *("ojs_cron", "ojs_pullworker", "ojs_subscription"),
)
HEARTBEAT = "ojs/v1/workers/heartbeat"


@csrf_exempt
@require_POST
def reset(request: HttpRequest) -> HttpResponse:
    """Wipe jobs, queues, limits, workers and crons: cases share names."""
    del request
    # A tick locks tables in another order: the server may end one of the two.
    retry_while_unavailable(wipe)
    return HttpResponse(status=204)


def wipe() -> None:
    """Empty the tables."""
    with connection.cursor() as cursor:
        names = ", ".join(f"dispatcher_{table}" for table in TABLES)
        cursor.execute(f"TRUNCATE {names} CASCADE")


@csrf_exempt
def heartbeat(request: HttpRequest) -> HttpResponseBase:
    """Play the administrator whom two cases want: a job names the directive of its worker."""
    body = json.loads(request.body or "{}")
    jobs = body.get("active_jobs")
    for call in CallQueue.objects.filter(id__in=jobs if isinstance(jobs, list) else []):
        given = ((job_of(call).envelope or {}).get("options") or {}).get("given") or {}
        if directive := (given.get("metadata") or {}).get("test_directive"):
            pull_workers.touch_worker(body["worker_id"])
            pull_workers.set_directive(body["worker_id"], directive)
    view, args, kwargs = resolve(f"/{HEARTBEAT}", "dispatcher.ojs.urls")
    response: HttpResponseBase = view(request, *args, **kwargs)
    return response


urlpatterns = [
    path("ojs/test/reset", reset),
    path(HEARTBEAT, heartbeat),
    path("", include("dispatcher.ojs.urls")),
]
