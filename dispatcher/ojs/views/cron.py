"""Crons: periodic jobs (ojs-cron)."""

from django.http import HttpRequest
from ninja import Query, Status
from pydantic import ValidationError

from dispatcher.ojs.api import ADMIN, READ, access_of
from dispatcher.ojs.cron import register_cron, set_cron_enabled
from dispatcher.ojs.enqueue import create_queues
from dispatcher.ojs.fields import given_fields
from dispatcher.ojs.job import read_job
from dispatcher.ojs.models import Cron
from dispatcher.ojs.pagination import PageIn, QueryString, paginate
from dispatcher.ojs.requests import CronIn, CronPatch, JobIn, OptionsIn
from dispatcher.ojs.responses import Answer, Routes, replies
from dispatcher.ojs.wire import invalid, the_one, without_nulls

router = Routes(tags=["cron"])

_ITS_TIME = "the cron's expression sets the time of its job"
_NOT_KEPT = {
    "scheduled_at": _ITS_TIME,
    "delay_until": _ITS_TIME,
    "expires_at": "the time would have passed after the first run",
    "pending": "a cron's job is due at once",
    "unique": "the cron's overlap_policy decides about overlapping runs",
}
"""Options that the job of a cron may not have, and why."""


class CronsIn(QueryString):
    """Which crons."""

    enabled: bool | None = None


@router.post("/cron", response=replies() | replies(status=201), auth=ADMIN)
def register(request: HttpRequest, wanted: CronIn) -> Status[Answer]:
    """Create a cron, or change the cron with this name."""
    expression = wanted.cron or wanted.expression
    if not expression:
        raise invalid("cron", "is missing; give an expression of five fields, such as 0 9 * * *.")
    job = _job(wanted)
    queue = read_job(job).queue
    access_of(request).require("send", queue)
    create_queues([queue])
    cron = Cron(
        name=wanted.name,
        expression=expression,
        timezone=wanted.timezone or "UTC",
        job=given_fields(job),
        overlap=wanted.overlap_policy or "skip",
        is_enabled=wanted.enabled is not False,
    )
    is_new = register_cron(cron)
    return Status(201 if is_new else 200, get_cron(request, wanted.name))


@router.get("/cron", auth=READ)
def list_all(request: HttpRequest, page: Query[PageIn], wanted: Query[CronsIn]) -> Answer:
    """List the crons."""
    rows = Cron.objects.only("name")
    if wanted.enabled is not None:
        rows = rows.filter(is_enabled=wanted.enabled)
    # What a cron sends is written four times.
    found = paginate(page, rows, order=["name"], default=200, large="job", times=4)
    shown = [_render(cron) for cron in Cron.objects.filter(name__in=[row.name for row in found.rows]).order_by("name")]
    return {"cron_jobs": shown, "crons": shown, "count": len(shown), "pagination": found.pagination}


@router.get("/cron/{name}", auth=READ)
def get_cron(request: HttpRequest, name: str) -> Answer:
    """Show a cron."""
    written = _render(the_one(Cron.objects.filter(name=name), "cron", name))
    return {"cron_job": written, "cron": written}


@router.patch("/cron/{name}", auth=ADMIN)
def switch(request: HttpRequest, name: str, wanted: CronPatch) -> Answer:
    """Enable or disable a cron."""
    set_cron_enabled(name, is_enabled=wanted.enabled)
    return get_cron(request, name)


@router.delete("/cron/{name}", auth=ADMIN)
def remove(request: HttpRequest, name: str) -> Answer:
    """Delete a cron; the jobs that it has sent stay."""
    body = get_cron(request, name)
    Cron.objects.filter(name=name).delete()
    return {**body, "deleted": True, "name": name}


def _job(wanted: CronIn) -> JobIn:
    """Return the job of a cron: of its template, or of its own fields."""
    template = wanted.job_template
    source, path = (wanted, "") if template is None else (template, "job_template.")
    if not source.type:
        raise invalid("type", "is missing; name the job type, or give a job_template.")
    beside = {name: value for name, value in given_fields(source).items() if name in OptionsIn.model_fields}
    options = given_fields(source.options)
    for name, reason in _NOT_KEPT.items():
        for where, given in (("", beside), ("options.", options)):
            if given.get(name):
                raise invalid(f"{path}{where}{name}", f"is not allowed for the job of a cron: {reason}. Leave it out.")
    parts = {"type": source.type, "args": source.args or [], "meta": source.meta, "options": {**beside, **options}}
    try:
        return JobIn.model_validate(without_nulls(parts))
    except ValidationError as error:
        first = error.errors()[0]
        raise invalid(".".join(map(str, first["loc"])), first["msg"]) from error


def _render(cron: Cron) -> Answer:
    return {
        "name": cron.name,
        "cron": cron.expression,
        "expression": cron.expression,
        "timezone": cron.timezone,
        "overlap_policy": cron.overlap,
        "enabled": cron.is_enabled,
        "status": "active" if cron.is_enabled else "disabled",
        "type": cron.job.get("type"),
        "args": cron.job.get("args"),
        "meta": cron.job.get("meta", {}),
        "options": cron.job.get("options", {}),
        "job_template": dict(cron.job),
        "created_at": cron.created_at,
        "last_run_at": cron.last_run_at,
        "next_run_at": cron.next_run_at,
        "run_count": cron.runs,
    }
