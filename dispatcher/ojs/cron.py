"""Crons: calls that are sent on a schedule, by a periodic task of the dispatcher: whatever runs these fires them.

A cron has the time of its next run. Who fires it locks its row, sends the call, and sets the next time, all in one
transaction; so it fires once, however many run the task. After a pause it fires once for all the runs that it missed.
"""

import hashlib
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from itertools import product
from typing import TYPE_CHECKING, Final
from uuid import UUID
from zoneinfo import ZoneInfo, available_timezones

from celery.schedules import ParseException, crontab
from django.db.models.functions import Now

from dispatcher import api, lanes, sql
from dispatcher.celery.schedule import ensure_periodic
from dispatcher.engine import compose
from dispatcher.errors import CallInvalid
from dispatcher.limits.policy import Policy
from dispatcher.models import RateLimitKey
from dispatcher.ojs import event_log, worker_reports
from dispatcher.ojs.enqueue import find_unique
from dispatcher.ojs.job import read_job
from dispatcher.ojs.jobs import with_options
from dispatcher.ojs.models import Cron, EventLogEntry
from dispatcher.ojs.requests import JobIn
from dispatcher.ojs.wire import format_time
from dispatcher.request import Call
from dispatcher.states import TERMINAL, State

if TYPE_CHECKING:
    from django.db.models import QuerySet

logger = logging.getLogger(__name__)

FIRE: Final = "dispatcher.fire_crons"
EVERY: Final = timedelta(seconds=1)
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


_CALENDAR: Final = 41 * 366
"""In how many days each date has come on each day of the week, also a 29 February around 2100."""


def _parse(expression: str) -> crontab:
    """Return the sets of a cron expression. Raises CallInvalid."""
    text = _WORDS.get(expression.strip().lower(), expression)
    words = text.split()
    if len(words) != len(_FIELDS):
        raise CallInvalid("expression", f"{expression!r} must have five fields, or be one of {', '.join(_WORDS)}.")
    named = dict(zip(_FIELDS, words, strict=True))
    named["day_of_week"] = re.sub(r"(?<!/)\b7\b", "0", named["day_of_week"])
    try:
        return crontab(**{name: value.lower() for name, value in named.items()})
    except (ValueError, ParseException) as error:
        raise CallInvalid("expression", f"{expression!r} is not a cron expression: {error}") from error


def _next_run(cron: Cron, after: datetime) -> datetime | None:
    """Return when a cron runs next, in UTC; None if it does not.

    A time that its zone skips comes as much later; in an hour that the zone repeats, only crons of each hour run twice.
    """
    if not cron.is_enabled:
        return None
    due, zone = _parse(cron.expression), ZoneInfo(cron.timezone)
    folds = (0, 1) if len(due.hour) == len(range(24)) else (0,)
    today = after.astimezone(zone).date()
    for day in (today + timedelta(days=days) for days in range(_CALENDAR)):
        if day.day in due.day_of_month and day.month in due.month_of_year and day.isoweekday() % 7 in due.day_of_week:
            times = (time(*each, tzinfo=zone) for each in product(due.hour, due.minute))
            runs = (datetime.combine(day, at.replace(fold=fold)).astimezone(UTC) for at, fold in product(times, folds))
            if (at := min((run for run in runs if run > after), default=None)) is not None:
                return at
    return None


def check_cron(cron: Cron) -> None:
    """Raise CallInvalid or PolicyInvalid, naming the field, if a cron can send no call."""
    _parse(cron.expression)
    if cron.timezone not in available_timezones() or ("/" not in cron.timezone and cron.timezone != "UTC"):
        raise CallInvalid("timezone", f"{cron.timezone!r} must be an IANA time zone, such as Europe/Berlin.")
    compose.check(_call(cron))


def register_cron(cron: Cron) -> bool:
    """Create or change a cron; return whether it is new. Raises CallInvalid or PolicyInvalid naming the field."""
    check_cron(cron)
    names = ("expression", "timezone", "overlap", "is_enabled", "job")
    values = {**{name: getattr(cron, name) for name in names}, "next_run_at": _next_run(cron, sql.now())}
    _, is_new = Cron.objects.update_or_create(name=cron.name, defaults=values)
    ensure_periodic(FIRE, EVERY)
    return is_new


def set_cron_enabled(name: str, *, is_enabled: bool) -> None:
    """Enable or disable a cron."""
    for cron in Cron.objects.filter(name=name):
        cron.is_enabled = is_enabled
        cron.next_run_at = _next_run(cron, sql.now())
        cron.save(update_fields=["is_enabled", "next_run_at"])


def fire_due() -> int:
    """Fire the crons whose time has come; return how many calls were sent."""
    due = Cron.objects.filter(next_run_at__lte=Now(), is_enabled=True)
    return sum(fire_cron(name, due) is not None for name in due.values_list("name", flat=True))


def fire_cron(name: str, among: "QuerySet[Cron] | None" = None) -> str | None:
    """Send a cron's call and return its id; an error is logged, and the cron is tried again at its next time.

    None if this minute's call was already sent, its overlap policy forbids it, its queue is paused, or it is disabled.
    among: the crons that may be fired; one that another process fires now is none.
    """
    rows = (Cron.objects.all() if among is None else among).filter(name=name, is_enabled=True)
    if rows.filter(overlap="enqueue").exists():
        # Before the transaction: a key created inside it would block other senders until its end.
        lanes.make_keys({f"{_PREFIX}{name}": Policy(concurrency=1)}, is_declared=True)
    sent = before = None
    with sql.atomic():
        cron = rows.select_for_update(skip_locked=True).first()
        if cron is None:
            return None
        try:
            with sql.atomic():
                sent, before = _send(cron)
        except Exception:
            logger.exception("cron %s: its call was not sent", name)
        now = sql.now()
        cron.next_run_at = _next_run(cron, now)
        cron.last_run_at, cron.runs = (now, cron.runs + 1) if sent else (cron.last_run_at, cron.runs)
        cron.save(update_fields=["next_run_at", "last_run_at", "runs"])
    if sent and before and cron.overlap == "cancel_previous":
        worker_reports.cancel(before)
    return sent


def _send(cron: Cron) -> tuple[str | None, UUID | None]:
    """Send the call of a cron that the caller has locked; return its id, and the call before that has not ended."""
    call, key, now = _call(cron), _unique_key(cron.name), sql.now()
    this_minute = timedelta(seconds=now.second, microseconds=now.microsecond)
    if find_unique(key, [*State], this_minute):
        return None, None
    before = find_unique(key, _OPEN)
    why = {}
    if before and cron.overlap == "skip":
        why = {"reason": "overlap_prevention", "existing_job_id": str(before.id)}
    elif RateLimitKey.objects.filter(name=f"queue:{call.queue}", is_paused=True).exists():
        why = {"reason": "queue_paused"}
    if why:
        logger.info("cron %s: skipped (%s)", cron.name, ", ".join(why.values()))
        about = {"cron_name": cron.name, "cron_expr": cron.expression, "job_type": call.task}
        event_log.note([EventLogEntry(kind="cron.skipped", queue=call.queue or "", data={**about, **why})])
        return None, None
    (sent,) = api.send_many([call])
    return str(sent.id), before.id if before else None


def _unique_key(name: str) -> str:
    """Return the unique key of a cron's calls: its name, or the hash of a name that is too long."""
    key = f"{_PREFIX}{name}"
    return key if len(key) <= _LONGEST_UNIQUE else hashlib.sha256(key.encode()).hexdigest()


def _call(cron: Cron) -> Call:
    """Return the call that a cron sends now."""
    call, itself = read_job(JobIn.model_validate(cron.job)).call, f"{_PREFIX}{cron.name}"
    keys = call.keys
    if cron.overlap == "enqueue":
        keys = {**(keys if isinstance(keys, Mapping) else dict.fromkeys(keys or (), 1)), itself: 1}
    fired = {META_NAME: cron.name, META_EXPRESSION: cron.expression, META_TRIGGERED: format_time(sql.now())}
    call = replace(call, keys=keys, meta={**(call.meta or {}), **fired})
    return with_options(call, unique_key=_unique_key(cron.name), sender=itself)
