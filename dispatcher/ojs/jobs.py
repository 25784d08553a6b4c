"""Jobs: calls with what only the HTTP API stores of them, in a row beside the call, where there is anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from dispatcher import sql, validate
from dispatcher.models import CallQueue
from dispatcher.ojs.models import Job
from dispatcher.ojs.wire import ANSWER_BYTES
from dispatcher.request import Call, Extras


@dataclass(frozen=True, kw_only=True)
class OjsOptions(Extras):
    """Options that the HTTP API has checked; see `models.Job` for those that are stored."""

    timeout: timedelta | None = None
    visibility: timedelta | None = None
    unique_key: str | None = None
    envelope: Mapping[str, Any] | None = None

    @property
    def columns(self) -> dict[str, Any]:
        """The fields of the call's row of `Job`."""
        return {name: getattr(self, name) for name in ("timeout", "visibility", "unique_key", "envelope")}

    @property
    def is_stored(self) -> bool:
        """Whether the call needs a row of `Job`."""
        return any(value is not None for value in self.columns.values())

    def text(self) -> str | None:
        """Return the envelope as JSON."""
        return None if self.envelope is None else validate.json_text("envelope", self.envelope)


def options_of(call: Call) -> OjsOptions:
    """Return the options of a call to send."""
    return call.extras if isinstance(call.extras, OjsOptions) else OjsOptions()


def with_options(call: Call, **changes: Any) -> Call:
    """Return a call to send with these of its options changed."""
    return replace(call, extras=replace(options_of(call), **changes))


def fitting(calls: Sequence[UUID]) -> int:
    """Return how many of these calls, in this order, an answer has room for: one at least, if there are any."""
    if len(calls) < 2:  # noqa: PLR2004 -- the one that it always has room for
        return len(calls)
    (count,) = sql.fetch("fitting_calls", int, {"calls": list(calls), "most": ANSWER_BYTES})
    return count


def read(calls: Sequence[UUID]) -> list[CallQueue]:
    """Return these calls in their order, with their jobs, without those that do not exist.

    Fields that no job has are deferred.
    """
    if not calls:
        return []
    params = {"calls": list(calls)}
    with sql.together():
        asked, beside = sql.ask("read_calls", CallQueue, params), sql.ask("read_jobs", Job, params)
    jobs = {job.call_id: job for job in beside.rows()}
    found = {call.id: call for call in asked.rows()}
    for call in found.values():
        attach(call, jobs.get(call.id))
    return [found[call] for call in calls if call in found]


def store(options: Mapping[UUID, OjsOptions]) -> None:
    """Store the options of calls that were written before in this transaction; nothing of those that were not."""
    rows = [each.columns | {"envelope": each.text()} for each in options.values()]
    columns = {name: [row[name] for row in rows] for name in OjsOptions().columns}
    sql.ask("write_jobs", object, {"calls": list(options), **columns})


def sent(call: CallQueue, options: OjsOptions) -> CallQueue:
    """Return a call that was sent with these options, with its job."""
    attach(call, Job(call=call, **options.columns) if options.is_stored else None)
    return call


def attach(call: CallQueue, job: Job | None) -> None:
    """Give a call its job, as `prefetch_related("job")` does."""
    CallQueue._meta.get_field("job").set_cached_value(call, job)


def job_of(call: CallQueue) -> Job:
    """Return what is stored beside a call; an empty job if there is nothing."""
    job: Job | None = getattr(call, "job", None)
    return Job() if job is None else job
