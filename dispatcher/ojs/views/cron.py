"""Crons: jobs that are sent again and again (ojs-cron)."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router
from pydantic import ValidationError

from dispatcher.ojs.api import access_of
from dispatcher.ojs.cron import Cron, delete_cron, list_crons, register_cron, set_cron_enabled
from dispatcher.ojs.job import read_job
from dispatcher.ojs.queues import known_queues
from dispatcher.ojs.requests import CronIn, CronPatch, JobIn, OptionsIn, or_default, plain
from dispatcher.ojs.responses import replies
from dispatcher.ojs.wire import answer, invalid, missing, stamp, without_nulls

router = Router(tags=["cron"])

_ITS_TIME = "the cron's expression says when its job is due"
_NOT_KEPT = {
    "scheduled_at": _ITS_TIME,
    "delay_until": _ITS_TIME,
    "expires_at": "a time would be over after the first run",
    "pending": "what a cron sends is due at once",
    "unique": "the cron's overlap_policy says what becomes of a run beside another",
}
"""What a job may have, but not that of a cron, and why."""


@router.post("/cron", response={**replies(status=201), **replies()}, summary="Register a cron")
def register(request: HttpRequest, wanted: CronIn) -> HttpResponse:
    """Make a cron, or change the one of this name."""
    expression = wanted.cron or wanted.expression
    if not expression:
        raise invalid("cron", "is missing; give an expression of five fields, such as 0 9 * * *.")
    job = _job(wanted)
    made = read_job(job)
    access_of(request).need("send", made.queue)
    access_of(request).need("admin")
    known_queues([made.queue])
    cron = Cron(
        name=wanted.name,
        expression=expression,
        timezone=wanted.timezone or "UTC",
        job=plain(job),
        overlap=wanted.overlap_policy or "skip",
        is_enabled=or_default(wanted.enabled, default=True),
    )
    is_new = register_cron(cron, made.call)
    return answer(_told(_find(wanted.name)), 201 if is_new else 200)


@router.get("/cron", response=replies(), summary="The crons")
def listed(request: HttpRequest) -> HttpResponse:
    """List the crons."""
    access_of(request).need("read")
    found = [_written(cron) for cron in list_crons()]
    if (wanted := request.GET.get("enabled")) in ("true", "false"):
        found = [cron for cron in found if cron["enabled"] == (wanted == "true")]
    pagination = {"total": len(found), "has_more": False}
    return answer({"cron_jobs": found, "crons": found, "count": len(found), "pagination": pagination})


@router.get("/cron/{name}", response=replies(), summary="A cron")
def shown(request: HttpRequest, name: str) -> HttpResponse:
    """Show a cron."""
    access_of(request).need("read")
    return answer(_told(_find(name)))


@router.patch("/cron/{name}", response=replies(), summary="Switch a cron on or off")
def switch(request: HttpRequest, name: str, wanted: CronPatch) -> HttpResponse:
    """Switch a cron on or off."""
    access_of(request).need("admin")
    _find(name)
    set_cron_enabled(name, is_enabled=wanted.enabled)
    return answer(_told(_find(name)))


@router.delete("/cron/{name}", response=replies(), summary="Delete a cron")
def remove(request: HttpRequest, name: str) -> HttpResponse:
    """Delete a cron; the jobs that it has sent stay."""
    access_of(request).need("admin")
    cron = _find(name)
    delete_cron(name)
    return answer({**_told(cron), "deleted": True, "name": name})


def _job(wanted: CronIn) -> JobIn:
    """Return the job of a cron: its template's, or what stands beside its name."""
    template = wanted.job_template
    source, path = (wanted, "") if template is None else (template, "job_template.")
    if not source.type:
        raise invalid("type", "is missing; name the kind of job, or give a job_template.")
    beside = {name: value for name, value in plain(source).items() if name in OptionsIn.model_fields}
    options = plain(source.options)
    for name, reason in _NOT_KEPT.items():
        for where, given in (("", beside), ("options.", options)):
            if given.get(name):
                raise invalid(f"{path}{where}{name}", f"is not for the job of a cron: {reason}. Leave it out.")
    parts = {"type": source.type, "args": source.args or [], "meta": source.meta, "options": {**beside, **options}}
    try:
        return JobIn.model_validate(without_nulls(parts))
    except ValidationError as error:
        first = error.errors()[0]
        raise invalid(".".join(map(str, first["loc"])), first["msg"]) from error


def _find(name: str) -> Cron:
    for cron in list_crons(name):
        return cron
    raise missing("cron", name)


def _told(cron: Cron) -> dict[str, Any]:
    written = _written(cron)
    return {"cron_job": written, "cron": written}


def _written(cron: Cron) -> dict[str, Any]:
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
        "created_at": stamp(cron.created_at),
        "last_run_at": stamp(cron.last_run_at),
        "next_run_at": stamp(cron.next_run_at),
        "run_count": cron.runs,
    }
