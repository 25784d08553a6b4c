"""In beat: entries of the dispenser's tasks are due whatever its clock says, and their messages fill no log.

Beat compares its own clock with the time of the last run, or change, which a former process wrote by its clock.
A beat whose clock is an hour behind would send nothing for that hour.
"""

import logging
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from celery import signals
from celery.beat import ScheduleEntry, Service
from celery.utils.time import maybe_make_aware
from django.apps import apps
from django.db.models.functions import Coalesce

from dispatcher.celery import periodic

logger = logging.getLogger(__name__)

_OURS = "dispatcher."


class _Quiet(logging.Filter):
    """Leaves out beat's line "Sending due task" for the dispenser's tasks: the tick alone would write 86,400 a day."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line is to be written."""
        is_sending = isinstance(record.msg, str) and record.msg.startswith("Scheduler: Sending due task")
        task = record.args[-1] if isinstance(record.args, tuple) and record.args else None
        return not (is_sending and record.levelno == logging.INFO and task in periodic.works())


_quiet = _Quiet()


@signals.beat_init.connect
def be_quiet(**_: Any) -> None:
    """Keep what is sent every second out of the log."""
    logging.getLogger("celery.beat").addFilter(_quiet)


@signals.beat_init.connect
def forget_future_runs(sender: Service, **_: Any) -> None:
    """Let the entries count from now that count from a time which is still to come."""
    now = datetime.now(UTC)
    if apps.is_installed("django_celery_beat"):
        _correct_rows(now)
    _correct_entries(sender.scheduler.schedule.values(), now)


def _correct_rows(now: datetime) -> None:
    """Store the correction as well: beat reads all entries again when one is edited."""
    from django_celery_beat.models import PeriodicTask  # noqa: PLC0415 -- optional app

    counted = PeriodicTask.objects.annotate(counts_from=Coalesce("last_run_at", "date_changed"))
    late = counted.filter(task__startswith=_OURS, counts_from__gt=now).update(last_run_at=now)
    if late:
        logger.warning("%d of beat's entries ran in the future, by this machine's clock; they count from now", late)


def _correct_entries(entries: Iterable[ScheduleEntry], now: datetime) -> None:
    for entry in entries:
        ours = entry.task.startswith(_OURS)
        if ours and entry.last_run_at is not None and maybe_make_aware(entry.last_run_at) > now:
            entry.last_run_at = now
