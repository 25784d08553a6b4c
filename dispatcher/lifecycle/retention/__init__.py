"""Retention: delete calls that ended long enough ago, workers long gone, starts that no window counts."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic

from dispatcher import sql
from dispatcher.conf import RETENTION, conf
from dispatcher.lifecycle.retention.old import delete_old
from dispatcher.models import CallQueue, KeyChange, Worker

WORKERS_KEPT = timedelta(days=1)
"""For how long a worker is kept that has not been seen."""
_BATCH = 1_000
_KEYS = 200
"""At how many keys one statement of `trim_starts` looks."""
_TRIM_S = 0.5
"""For how long one recovery trims starts."""


class _Trim:
    """After which key this process's next slice of the starts begins."""

    key = 0


@dataclass(frozen=True, kw_only=True)
class _Trimmed:
    trimmed: int
    last: int


def delete_ended(*, now: datetime | None = None) -> int:
    """Delete ended calls past the retention of their state, in batches, within the time budget; return how many.

    Those to which rows of the project still point are kept, and reported.
    """
    settings = conf()
    calls = CallQueue.objects.using(settings.database)
    ended = [(calls.filter(state=state), kept) for state, kept in {**RETENTION, **settings.retention}.items()]
    return delete_old(ended, "finished_at", settings.cleanup_budget, now)


def delete_workers(*, now: datetime | None = None) -> int:
    """Delete the rows of Celery workers that have been gone for a day; return how many."""
    workers = Worker.objects.using(conf().database).all()
    return delete_old([(workers, WORKERS_KEPT)], "seen_at", conf().cleanup_budget, now)


def delete_changes(*, now: datetime | None = None) -> int:
    """Delete the changes of keys that were kept for long enough, within the time budget; return how many."""
    changes = KeyChange.objects.using(conf().database).all()
    return delete_old([(changes, conf().change_retention)], "at", conf().cleanup_budget, now)


def trim_starts(*, now: datetime | None = None) -> int:
    """Delete starts that no window counts any more, for a short time; return how many.

    Each call goes on where the last one of this process ended.
    """
    stop_at = monotonic() + _TRIM_S
    trimmed = 0
    while True:
        params = {"key": _Trim.key, "most_keys": _KEYS, "most": _BATCH, "margin": conf().margin, "now": now}
        (batch,) = sql.fetch_in_order("trim_starts", _Trimmed, params)
        _Trim.key = batch.last
        trimmed += batch.trimmed
        if batch.last == 0 or monotonic() >= stop_at:
            return trimmed


def trim_shares() -> None:
    """Delete what shares of fair keys have got where it no longer counts, up to a batch."""
    sql.ask("trim_shares", object, {"most": _BATCH})
