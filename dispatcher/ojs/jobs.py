"""Jobs: calls with what only the HTTP API stores of them, in a row beside the call, where there is anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    def is_stored(self) -> bool:
        """Whether the call needs a row of `Job`."""
        return (self.timeout, self.visibility, self.unique_key, self.envelope) != (None,) * 4

    def text(self) -> str | None:
        """Return the envelope as JSON."""
        return None if self.envelope is None else validate.json_text("envelope", self.envelope)


def options_of(call: Call) -> OjsOptions:
    """Return the options of a call to send."""
    return call.extras if isinstance(call.extras, OjsOptions) else OjsOptions()


@dataclass(frozen=True, slots=True)
class Asked:
    """Calls on their way with their jobs; read them after `sql.together()`."""

    calls: sql.Asked[CallQueue]
    jobs: sql.Asked[Job]

    def rows(self) -> list[CallQueue]:
        """Return the calls, in any order."""
        jobs = {job.call_id: job for job in self.jobs.rows()}
        calls = self.calls.rows()
        for call in calls:
            attach(call, jobs.get(call.id))
        return calls


def ask(calls: Sequence[UUID]) -> Asked:
    """Ask for these calls; fields that no job has are deferred."""
    params = {"calls": list(calls)}
    return Asked(sql.ask("read_calls", CallQueue, params), sql.ask("read_jobs", Job, params))


def fitting(calls: Sequence[UUID]) -> int:
    """Return how many of these calls, in this order, an answer has room for: one at least, if there are any."""
    if len(calls) < 2:  # noqa: PLR2004 -- the one that it always has room for
        return len(calls)
    (count,) = sql.fetch("fitting_calls", int, {"calls": list(calls), "most": ANSWER_BYTES})
    return count


def read(calls: Sequence[UUID]) -> list[CallQueue]:
    """Return these calls in their order, without those that do not exist."""
    if not calls:
        return []
    with sql.together():
        asked = ask(calls)
    return in_order(asked, calls)


def in_order(asked: Asked, calls: Sequence[UUID]) -> list[CallQueue]:
    """Return what was asked for, in this order."""
    found = {row.id: row for row in asked.rows()}
    return [found[call] for call in calls if call in found]


def store(options: Mapping[UUID, OjsOptions]) -> None:
    """Store the options of calls that were written before in this transaction; nothing of those that were not."""
    columns: dict[str, list[Any]] = {
        name: [getattr(each, name) for each in options.values()] for name in ("timeout", "visibility", "unique_key")
    }
    envelopes = [each.text() for each in options.values()]
    sql.ask("write_jobs", object, {"calls": list(options), **columns, "envelopes": envelopes})


def sent(call: CallQueue, options: OjsOptions) -> CallQueue:
    """Return a call that was sent with these options, with its job."""
    fields = {name: getattr(options, name) for name in ("timeout", "visibility", "unique_key", "envelope")}
    attach(call, Job(call=call, **fields) if options.is_stored else None)
    return call


def attach(call: CallQueue, job: Job | None) -> None:
    """Give a call its job, as `prefetch_related("job")` does."""
    CallQueue._meta.get_field("job").set_cached_value(call, job)


def job_of(call: CallQueue) -> Job:
    """Return what is stored beside a call; an empty job if there is nothing."""
    job: Job | None = getattr(call, "job", None)
    return Job() if job is None else job
