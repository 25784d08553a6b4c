"""Dead letters: jobs that have no attempt left, and asked to be kept (ojs-dead-letter)."""

from typing import Any, Final

from django.db.models import Count, Max, Min, Q, QuerySet, TextField, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from ninja import Router

from dispatcher import api, sql
from dispatcher.conf import conf
from dispatcher.models import CallQueue
from dispatcher.ojs.api import access_of
from dispatcher.ojs.auth import Access
from dispatcher.ojs.job import write_job
from dispatcher.ojs.pagination import Page, page, window
from dispatcher.ojs.permissions import seen
from dispatcher.ojs.responses import JobReply, JobsReply, SeenJobReply, replies
from dispatcher.ojs.wire import answer, missing, read_id, stamp
from dispatcher.states import Reason, State

router = Router(tags=["dead letters"])

_ORDER: Final = ("-finished_at", "-id")


@router.get("/dead-letter", response=replies(JobsReply), summary="The dead letters")
def letters(request: HttpRequest) -> HttpResponse:
    """List the dead letters, latest first; `queue` and `type` choose among them."""
    access_of(request).need("read")
    found = find_page(request)
    return answer({"jobs": [write_job(call) for call in found.rows], "pagination": found.pagination})


@router.get("/dead-letter/stats", response=replies(), summary="How many dead letters there are")
def stats(request: HttpRequest) -> HttpResponse:
    """Count the dead letters."""
    access_of(request).need("read")
    return answer(count_dead_letters())


@router.get("/dead-letter/{job_id}", response=replies(JobReply), summary="A dead letter")
def letter(request: HttpRequest, job_id: str) -> HttpResponse:
    """Show a dead letter."""
    call = find_dead_letter(job_id)
    access_of(request).need("read", call.queue)
    return answer({"job": write_job(call)})


@router.post("/dead-letter/{job_id}/retry", response=replies(SeenJobReply), summary="Try a dead letter again")
def retry(request: HttpRequest, job_id: str) -> HttpResponse:
    """Let a dead letter wait again, from attempt 0 and with its errors kept."""
    call = find_dead_letter(job_id)
    access = access_of(request)
    access.need("send", call.queue)
    return answer({"job": retry_dead_letter(access, call)})


@router.delete("/dead-letter/{job_id}", response=replies(), summary="Delete a dead letter")
def delete(request: HttpRequest, job_id: str) -> HttpResponse:
    """Delete a dead letter for good."""
    call = find_dead_letter(job_id)
    access_of(request).need("admin")
    delete_dead_letter(call)
    return answer({"deleted": True, "job_id": job_id})


def find_page(request: HttpRequest, *, usual: int = 50) -> Page:
    """Return the page of dead letters that a request asks for. Raises Problem."""
    found = _dead()
    if queue := request.GET.get("queue"):
        found = found.filter(queue=queue)
    if kind := request.GET.get("type"):
        found = found.filter(task=kind)
    return page(request, found, order=_ORDER, among=_discarded(), usual=usual)


def find_dead_letter(job_id: str) -> CallQueue:
    """Return a dead letter. Raises Problem if there is none."""
    call = _dead().filter(id=read_id("dead_letter_job", job_id)).first()
    if call is None:
        raise missing("dead_letter_job", job_id)
    return call


def retry_dead_letter(access: Access, call: CallQueue) -> dict[str, Any]:
    """Let a dead letter wait again, and write it."""
    api.retry([call.id])
    call.refresh_from_db()
    return {**seen(access, call), "re_enqueued_at": stamp(sql.now())}


def delete_dead_letter(call: CallQueue) -> None:
    """Delete a dead letter."""
    _dead().filter(id=call.id).delete()


def count_dead_letters() -> dict[str, Any]:
    """Count the dead letters among the latest MANY discarded jobs, by queue and by error."""
    looked_through = window(_dead(), _ORDER, _discarded())
    letters = looked_through.rows.order_by()
    by_queue = _counts(letters.values_list("queue"))
    by_type = _counts(letters.values_list(Coalesce(KT("error__type"), Value("None", output_field=TextField()))))
    times = letters.aggregate(oldest=Min("finished_at"), newest=Max("finished_at"))
    told = {"total": sum(by_queue.values()), "total_is_exact": looked_through.last is None}
    counts = {"by_queue": by_queue, "by_error_type": by_type}
    return {**told, **counts, "oldest_at": stamp(times["oldest"]), "newest_at": stamp(times["newest"])}


def _counts(rows: QuerySet[CallQueue, tuple[str]]) -> dict[str, int]:
    return dict(rows.annotate(count=Count("id")).order_by("-count"))


def _dead() -> QuerySet[CallQueue]:
    """Return what ended for lack of attempts and asked to be kept, or kills its workers."""
    return _discarded().filter(Q(reason=Reason.FAILED, retry__on_exhaustion="dead_letter") | Q(reason=Reason.POISON))


def _discarded() -> QuerySet[CallQueue]:
    # Both are named so that the index of ended calls serves it.
    return CallQueue.objects.using(conf().database).filter(state=State.DISCARDED, finished_at__isnull=False)
