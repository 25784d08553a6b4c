"""Dead letters: jobs that are out of attempts and asked to be kept (ojs-dead-letter)."""

from typing import Final

from django.db.models import Count, Max, Min, Q, QuerySet, TextField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from ninja import Query

from dispatcher import api, sql
from dispatcher.models import CallQueue
from dispatcher.ojs import job_query
from dispatcher.ojs.api import ADMIN, READ, access_of
from dispatcher.ojs.job import write_job
from dispatcher.ojs.pagination import window
from dispatcher.ojs.permissions import visible_job
from dispatcher.ojs.queries import LettersIn, PageIn
from dispatcher.ojs.responses import ItemsReply, JobOrSummaryReply, JobReply, JobsReply, Routes, replies
from dispatcher.ojs.wire import (
    MEDIA_TYPE,
    format_time,
    is_admins,
    job_body,
    json_response,
    parse_id,
    the_one,
    without_nulls,
)
from dispatcher.states import Reason, State

router = Routes(tags=["dead letters"])

_ORDER: Final = ("-finished_at", "-id")


@router.get("/admin/dead-letter", response=replies(ItemsReply), auth=READ)
@router.get("/dead-letter", response=replies(JobsReply), auth=READ)
def letters(request: HttpRequest, page: Query[PageIn], wanted: Query[LettersIn]) -> HttpResponse:
    """List the dead letters, latest first; `queue` and `type` filter them."""
    named = without_nulls({"queue": wanted.queue, "task": wanted.type})
    rows = _dead().filter(**named)
    found = job_query.page(page, rows, order=_ORDER, among=_discarded(), default=20 if is_admins(request) else 50)
    name = "items" if is_admins(request) else "jobs"
    return json_response({name: [write_job(call) for call in found.rows], "pagination": found.pagination})


@router.get("/dead-letter/stats", auth=READ)
@router.get("/admin/dead-letter/stats", auth=READ)
def stats(request: HttpRequest) -> HttpResponse:
    """Count the dead letters among the latest ROW_LIMIT discarded jobs, by queue and by error type."""
    looked_through = window(_dead(), _ORDER, _discarded())
    letters = looked_through.rows.order_by()
    by_queue = _counts(letters.values_list("queue"))
    by_type = _counts(letters.values_list(Coalesce(KT("error__type"), Value("None", output_field=TextField()))))
    times = letters.aggregate(oldest=Min("finished_at"), newest=Max("finished_at"))
    counts = {
        "total": sum(by_queue.values()),
        "total_is_exact": looked_through.last is None,
        "by_queue": by_queue,
        "by_error_type": by_type,
        "oldest_at": format_time(times["oldest"]),
        "newest_at": format_time(times["newest"]),
    }
    return json_response(counts)


@router.get("/dead-letter/{job_id}", response=replies(JobReply))
def letter(request: HttpRequest, job_id: str) -> HttpResponse:
    """Show a dead letter."""
    call = find_dead_letter(job_id)
    access_of(request).require("read", call.queue)
    return json_response({"job": write_job(call)})


@router.post("/admin/dead-letter/{job_id}/retry", auth=ADMIN)
@router.post("/dead-letter/{job_id}/retry", response=replies(JobOrSummaryReply))
def retry(request: HttpRequest, job_id: str) -> HttpResponse:
    """Make a dead letter wait again, from attempt 0; its errors are kept."""
    call, access = find_dead_letter(job_id), access_of(request)
    access.require("send", call.queue)
    api.retry([call.id])
    call.refresh_from_db()
    job = {**visible_job(access, call), "re_enqueued_at": format_time(sql.now())}
    return json_response(job_body(request, job))


@router.delete("/admin/dead-letter/{job_id}", response=replies(None, 204), auth=ADMIN)
@router.delete("/dead-letter/{job_id}", auth=ADMIN)
def delete(request: HttpRequest, job_id: str) -> HttpResponse:
    """Delete a dead letter permanently."""
    _dead().filter(id=find_dead_letter(job_id).id).delete()
    if is_admins(request):
        return HttpResponse(status=204, content_type=MEDIA_TYPE)
    return json_response({"deleted": True, "job_id": job_id})


def find_dead_letter(job_id: str) -> CallQueue:
    """Return a dead letter. Raises Problem if it does not exist."""
    return the_one(_dead().filter(id=parse_id("dead_letter_job", job_id)), "dead_letter_job", job_id)


def _counts(rows: QuerySet[CallQueue, tuple[str]]) -> dict[str, int]:
    return dict(rows.annotate(count=Count("id")).order_by("-count"))


def _dead() -> QuerySet[CallQueue]:
    """Return the calls that ran out of attempts and asked to be kept, and those that kill their workers."""
    return _discarded().filter(Q(reason=Reason.FAILED, retry__on_exhaustion="dead_letter") | Q(reason=Reason.POISON))


def _discarded() -> QuerySet[CallQueue]:
    # Both conditions are needed for the index of ended calls.
    return CallQueue.objects.filter(state=State.DISCARDED, finished_at__isnull=False)
