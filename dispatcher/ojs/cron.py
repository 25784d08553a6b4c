"""Crons: calls that Celery beat sends periodically, stored in django-celery-beat's tables."""

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from zoneinfo import available_timezones

from celery.schedules import ParseException, crontab
from django.apps import apps
from django.db import router

from dispatcher import api, event_log, lanes, sql
from dispatcher.conf import conf
from dispatcher.errors import CallInvalid
from dispatcher.event_log import Entry
from dispatcher.limits.policy import Policy
from dispatcher.models import RateLimitKey
from dispatcher.ojs import worker_reports
from dispatcher.ojs.enqueue import find_unique
from dispatcher.ojs.options import OjsOptions, options_of
from dispatcher.ojs.wire import Problem
from dispatcher.request import Call
from dispatcher.states import TERMINAL, State

logger = logging.getLogger(__name__)

CRON_TASK: Final = "dispatcher.cron"
META_NAME: Final = "cron_name"
META_EXPRESSION: Final = "cron_expression"
META_TRIGGERED: Final = "cron_triggered_at"
"""Fields in the `meta` of a call that a cron has sent."""
_PREFIX: Final = "cron:"
_LONGEST_UNIQUE: Final = 64
_FIELDS: Final = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
_WORDS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_OPEN: Final = [str(state) for state in State if state not in TERMINAL]


@dataclass(frozen=True, kw_only=True)
class Cron:
    """A call that is sent on a schedule.

    job: the call as its sender gave it, for display.
    overlap: what happens while the previous call runs: `skip`, `allow`, `cancel_previous`, or `enqueue` (one after
    the other).
    """

    name: str
    expression: str
    timezone: str
    job: Mapping[str, Any]
    overlap: str = "skip"
    is_enabled: bool = True
    created_at: datetime | None = None
    last_run_at: datetime | None = None
    next_run_at: datetime | None = None
    runs: int = 0


_HALF_A_SECOND = timedelta(milliseconds=500)


def cron_fields(expression: str) -> dict[str, str]:
    """Return the five fields of a cron expression. Raises CallInvalid."""
    text = _WORDS.get(expression.strip().lower(), expression)
    words = text.split()
    if len(words) != len(_FIELDS):
        raise CallInvalid("expression", f"{expression!r} must have five fields, or be one of {', '.join(_WORDS)}.")
    named = dict(zip(_FIELDS, words, strict=True))
    named["day_of_week"] = re.sub(r"\b7\b", "0", named["day_of_week"])
    try:
        crontab(**{name: value.lower() for name, value in named.items()})
    except (ValueError, ParseException) as error:
        raise CallInvalid("expression", f"{expression!r} is not a cron expression: {error}") from error
    return named


def register_cron(cron: Cron, call: Call) -> bool:
    """Create or change a cron; return whether it is new. Raises CallInvalid naming the field, or Problem."""
    entries = _entries()
    from django_celery_beat.models import CrontabSchedule  # noqa: PLC0415 -- optional app

    if cron.timezone not in available_timezones() or ("/" not in cron.timezone and cron.timezone != "UTC"):
        raise CallInvalid("timezone", f"{cron.timezone!r} must be an IANA time zone, such as Europe/Berlin.")
    named = cron_fields(cron.expression)
    for name, text in named.items():
        if len(text) > (most := CrontabSchedule._meta.get_field(name).max_length):
            raise CallInvalid("expression", f"{name} is longer than {most} characters; write it shorter, with ranges.")
    named["timezone"] = cron.timezone
    schedules = CrontabSchedule.objects.using(router.db_for_write(CrontabSchedule))
    schedule = schedules.filter(**named).first() or schedules.create(**named)
    stored = {"expression": cron.expression, "job": cron.job, "overlap": cron.overlap, "call": _as_json(call)}
    _, is_new = entries.update_or_create(
        name=f"{_PREFIX}{cron.name}",
        defaults={
            "task": CRON_TASK,
            "crontab": schedule,
            "interval": None,
            "args": json.dumps([cron.name]),
            "description": json.dumps(stored),
            "enabled": cron.is_enabled,
            "queue": conf().dispenser_queue,
        },
    )
    return bool(is_new)


def list_crons(name: str | None = None) -> list[Cron]:
    """Return all crons, or the one with this name, ordered by name."""
    entries = _entries() if name is None else _entries_of(name)
    return [_read(entry) for entry in entries.filter(task=CRON_TASK).select_related("crontab").order_by("name")]


def set_cron_enabled(name: str, *, is_enabled: bool) -> None:
    """Enable or disable a cron."""
    for entry in _entries_of(name):
        entry.enabled = is_enabled
        # Saved one by one, because that notifies a running beat.
        entry.save()


def delete_cron(name: str) -> None:
    """Delete a cron; the calls that it has sent stay."""
    for entry in _entries_of(name):
        entry.delete()


def fire_cron(name: str) -> str | None:
    """Send a cron's call and return its id.

    None if this minute's call was already sent, its overlap policy forbids it, or its queue is paused.
    """
    entry = _entries_of(name).filter(enabled=True).first()
    if entry is None:
        return None
    stored = json.loads(entry.description)
    key = _unique_key(name)
    if stored["overlap"] == "enqueue":
        # Before the transaction: a key created inside it would block other senders until its end.
        lanes.make_keys({f"{_PREFIX}{name}": Policy(concurrency=1)}, is_declared=True)
    with sql.atomic():
        sql.change("lock_unique", {"names": [key]})
        now = sql.now()
        # Beat can run twice, or late: at most one call a minute is sent.
        this_minute = timedelta(seconds=now.second, microseconds=now.microsecond)
        if find_unique(key, [*State], this_minute):
            return None
        before = find_unique(key, _OPEN)
        why = {}
        if before and stored["overlap"] == "skip":
            why = {"reason": "overlap_prevention", "existing_job_id": str(before.id)}
        elif _is_paused(stored["call"]["queue"]):
            why = {"reason": "queue_paused"}
        if why:
            _note_skipped(name, stored, why)
            return None
        (sent,) = api.send_many([_call(stored, name)])
    if before and stored["overlap"] == "cancel_previous":
        worker_reports.cancel(before.id)
    return str(sent.id)


def _is_paused(queue: str) -> bool:
    return RateLimitKey.objects.filter(name=f"queue:{queue}", is_paused=True).exists()


def _note_skipped(name: str, stored: Mapping[str, Any], why: Mapping[str, str]) -> None:
    """Record that a cron skips its call this time."""
    logger.info("cron %s: skipped (%s)", name, ", ".join(why.values()))
    about = {"cron_name": name, "cron_expr": stored["expression"], "job_type": stored["call"]["task"]}
    event_log.note([Entry(kind="cron.skipped", queue=stored["call"]["queue"], data={**about, **why})])


def can_store() -> bool:
    """Return whether django-celery-beat is installed, whose tables have the crons."""
    return apps.is_installed("django_celery_beat")


def _entries() -> Any:
    """Return beat's entries, in the database of beat's own models. Raises Problem without django-celery-beat."""
    if not can_store():
        raise Problem(422, "unsupported", 'crons need beat: add "django_celery_beat" to INSTALLED_APPS, and run beat.')
    from django_celery_beat.models import PeriodicTask  # noqa: PLC0415 -- optional app

    return PeriodicTask.objects.using(router.db_for_write(PeriodicTask))


def _entries_of(name: str) -> Any:
    return _entries().filter(name=f"{_PREFIX}{name}")


def _unique_key(name: str) -> str:
    """Return the unique key of a cron's calls: its name, or the hash of a name that is too long."""
    key = f"{_PREFIX}{name}"
    return key if len(key) <= _LONGEST_UNIQUE else hashlib.sha256(key.encode()).hexdigest()


def _call(stored: Mapping[str, Any], name: str) -> Call:
    kept, itself = stored["call"], f"{_PREFIX}{name}"
    keys = kept["keys"]
    if stored["overlap"] == "enqueue":
        keys = {**(keys if isinstance(keys, dict) else dict.fromkeys(keys or (), 1)), itself: 1}
    fired = {META_NAME: name, META_EXPRESSION: stored["expression"], META_TRIGGERED: sql.now().isoformat()}
    return Call(
        **{field: kept[field] for field in ("task", "args", "queue", "priority", "retry", "rate_limit")},
        keys=keys,
        meta={**(kept["meta"] or {}), **fired},
        extras=OjsOptions(
            unique_key=_unique_key(name),
            envelope=kept["envelope"],
            sender=itself,
            timeout=_span(kept["timeout"]),
            visibility=_span(kept["visibility"]),
        ),
    )


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _as_json(call: Call) -> dict[str, Any]:
    options = options_of(call)
    named = ("task", "args", "meta", "queue", "priority", "retry", "rate_limit", "keys")
    spans = {"timeout": options.timeout, "visibility": options.visibility}
    return {
        **{field: getattr(call, field) for field in named},
        **{field: span and span.total_seconds() for field, span in spans.items()},
        "envelope": options.envelope,
    }


def _read(entry: Any) -> Cron:
    stored = json.loads(entry.description)
    now = sql.now()
    wait = entry.schedule.remaining_estimate(now) if entry.enabled else None
    return Cron(
        name=entry.name.removeprefix(_PREFIX),
        expression=stored["expression"],
        timezone=str(entry.crontab.timezone),
        job=stored["job"],
        overlap=stored["overlap"],
        is_enabled=entry.enabled,
        created_at=entry.date_changed,
        last_run_at=entry.last_run_at,
        # Rounded to the second: the estimate can be slightly early.
        next_run_at=None if wait is None else (now + wait + _HALF_A_SECOND).replace(microsecond=0),
        runs=entry.total_run_count,
    )
