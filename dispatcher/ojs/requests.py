"""What requests carry: the shapes that are checked first, and published in the schema.

An explicit null is as good as nothing. What is not known is kept where the spec says so, and else ignored. Not so where
jobs are chosen or limits are set: there a slip would do more, or limit less, than was meant.
"""

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from dispatcher.limits.retry import MOST_ATTEMPTS
from dispatcher.ojs.fields import (
    AnyId,
    AnyState,
    AtLeastOne,
    Count,
    Duration,
    JobId,
    KeyName,
    Lease,
    Moment,
    Name,
    QueueName,
    Span,
    StateName,
    Strategy,
    Text,
    Weight,
    WorkerName,
)

T = TypeVar("T")


class Body(BaseModel):
    """What is known is checked strictly; what is not is let by."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class Exact(Body):
    """What is known is checked strictly, and what is not is refused."""

    model_config = ConfigDict(strict=True, extra="forbid")


class RateIn(Exact):
    """So many starts in a period."""

    limit: AtLeastOne
    period: Duration


class RateLimitIn(Exact):
    """A policy in one of three dialects: the spec's text, `rate: 1, period: "second"`, or `max_per_second`."""

    key: KeyName | None = None
    concurrency: Count | None = None
    rate: RateIn | AtLeastOne | None = None
    throttle: RateIn | None = None
    on_limit: Literal["wait", "reschedule", "drop"] | None = None
    period: Literal["second", "minute", "hour", "day"] | None = None
    max_per_second: AtLeastOne | None = None


class RetryIn(Body):
    """When a failed job is tried again (ojs-retry); intervals as ISO 8601, or in milliseconds."""

    max_attempts: Annotated[int, Field(ge=0, le=MOST_ATTEMPTS)] | None = None
    initial_interval: Duration | None = None
    initial_interval_ms: Span | None = None
    backoff_coefficient: Annotated[float, Field(ge=1, le=100)] | None = None
    max_interval: Duration | None = None
    max_interval_ms: Span | None = None
    jitter: bool | None = None
    non_retryable_errors: list[Annotated[str, Field(min_length=1, max_length=255)]] | None = None
    backoff_strategy: Literal["exponential", "linear", "polynomial", "constant", "none"] | None = None
    on_exhaustion: Literal["discard", "dead_letter"] | None = None


class UniqueIn(Body):
    """Of jobs that agree in these parts, one at a time (ojs-unique-jobs)."""

    keys: Annotated[list[Literal["type", "queue", "args", "meta"]], Field(min_length=1)] | None = None
    args_keys: Annotated[list[str], Field(min_length=1)] | None = None
    meta_keys: Annotated[list[str], Field(min_length=1)] | None = None
    period: Duration | None = None
    states: Annotated[list[StateName], Field(min_length=1)] | None = None
    on_conflict: Literal["reject", "ignore", "replace", "replace_except_schedule"] | None = None


class OptionsIn(Body):
    """How a job is to be done. `keys` are those that it spends besides its rate limit's: names, or costs by name."""

    queue: QueueName | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    timeout_ms: Span | None = None
    delay_until: Moment | None = None
    scheduled_at: Moment | None = None
    expires_at: Moment | None = None
    retry: RetryIn | None = None
    unique: UniqueIn | None = None
    rate_limit: RateLimitIn | None = None
    keys: list[KeyName] | dict[str, AtLeastOne] | None = None
    visibility_timeout_ms: Lease | None = None
    pending: bool | None = None
    tags: list[Text] | None = None


class JobIn(OptionsIn):
    """A job to be sent; its options may stand beside its type, too. Unknown fields are kept, and given back."""

    type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$", max_length=255)]
    args: list[JsonValue]
    meta: dict[str, JsonValue] | None = None
    id: JobId | None = None
    options: OptionsIn | None = None


class BatchIn(Body):
    """Jobs to be sent, all or none."""

    jobs: Annotated[list[JobIn], Field(min_length=1, max_length=10_000)]


class FetchIn(Body):
    """Who wants jobs of which queues, in which order; `wait_ms`: for how long the answer may wait for one."""

    queues: Annotated[list[QueueName], Field(min_length=1, max_length=100)]
    pool: Text | None = None
    strategy: Strategy | None = None
    weights: dict[str, Weight] | None = None
    count: Annotated[int, Field(ge=1, le=500)] | None = None
    worker_id: WorkerName | None = None
    visibility_timeout_ms: Lease | None = None
    wait_ms: Annotated[int, Field(ge=0, le=30_000)] | None = None


class Proof(Body):
    """Who speaks of a job. Only the ticket is new at each fetch; an attempt's number counts with the worker's name."""

    ticket: AnyId | None = None
    attempt: Annotated[int, Field(ge=1)] | None = None
    worker_id: WorkerName | None = None


class Report(Proof):
    """Which job is reported on, and by whom."""

    job_id: AnyId


class AckIn(Report):
    """A job that is done."""

    result: JsonValue = None


class ErrorIn(Body):
    """How an attempt failed. `rate_limit_until`: the provider said stop until then."""

    code: Annotated[str, Field(max_length=255)] | None = None
    type: Annotated[str, Field(max_length=255)] | None = None
    message: str
    retryable: bool | None = None
    details: dict[str, JsonValue] | None = None
    backtrace: list[str] | None = None
    rate_limit_until: Moment | None = None


class NackIn(Report):
    """A job that failed; `requeue` gives it back instead, and no attempt is spent."""

    error: ErrorIn
    requeue: bool | None = None


class BeatIn(Body):
    """A worker that lives, and the jobs that it runs: a list of ids, or how many."""

    worker_id: WorkerName
    active_jobs: list[AnyId] | Count | None = None
    active_job_ids: list[AnyId] | None = None
    visibility_timeout_ms: Lease | None = None
    state: Annotated[str, Field(max_length=16)] | None = None


class ProgressIn(Proof):
    """How far a running job is: from 0 to 1."""

    progress: Annotated[float, Field(ge=-1e9, le=1e9)]
    message: Text | None = None
    data: dict[str, JsonValue] | None = None


class PauseIn(Exact):
    """Why a queue is paused or resumed, for the history."""

    reason: Text | None = None
    until: JsonValue = None

    @field_validator("until")
    @classmethod
    def _has_no_end(cls, until: object) -> None:
        """Refuse an end, with the remedy."""
        if until is not None:
            message = "a pause has no end: PUT /rate-limits/queue:NAME with concurrency 0 and expires_at instead."
            raise ValueError(message)


def reason_of(wanted: PauseIn | None) -> str:
    """Return the reason that a body gives."""
    return (wanted and wanted.reason) or ""


class OverrideIn(Exact):
    """Other limits for a key, until a time; those not named stay as they are."""

    concurrency: Count | None = None
    rate: RateIn | None = None
    throttle: RateIn | None = None
    expires_at: Moment | None = None


class LimitIn(Exact):
    """The limits of a queue; null takes one away, and those not named stay as they are."""

    concurrency: Count | None = None
    rate: RateIn | None = None
    throttle: RateIn | None = None

    def named(self) -> dict[str, Any]:
        """Return the limits that are named, None for those to be taken away."""
        return self.model_dump(exclude_unset=True, include={"concurrency", "rate", "throttle"})


class QueueLimitIn(LimitIn):
    """The same within the configuration of a queue, where a rate may stand without its name (ojs-admin-api, 6.6)."""

    limit: AtLeastOne | None = None
    period: Duration | None = None

    @model_validator(mode="after")
    def _name_rate(self) -> Self:
        if self.limit is None and self.period is None:
            return self
        if self.limit is None or self.period is None or "rate" in self.model_fields_set:
            message = "a rate is both a limit and a period, said once."
            raise ValueError(message)
        self.rate = RateIn(limit=self.limit, period=self.period)
        return self


class BackpressureIn(Body):
    """How many jobs may wait in a queue, and what becomes of more; 0 is no bound."""

    max_depth: Count
    strategy: Literal["reject", "block", "drop_oldest"] | None = None
    warning_threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class QueueConfigIn(Exact):
    """What is set for a queue; what is not named, or null, stays as it is."""

    backpressure: BackpressureIn | None = None
    concurrency: Count | None = None
    rate_limit: QueueLimitIn | None = None
    delivery: Literal["broker", "direct", "http"] | None = None


class CronTemplateIn(OptionsIn):
    """The job that a cron sends; its options may stand beside its type, too."""

    type: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$", max_length=255)]
    args: list[JsonValue] | None = None
    meta: dict[str, JsonValue] | None = None
    options: OptionsIn | None = None


class CronIn(OptionsIn):
    """A job that is sent again and again: in the words of the spec's text, or with a `job_template`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=190)]
    cron: Annotated[str, Field(max_length=255)] | None = None
    expression: Annotated[str, Field(max_length=255)] | None = None
    timezone: Annotated[str, Field(max_length=63)] | None = None
    overlap_policy: Literal["skip", "allow", "cancel_previous", "enqueue"] | None = None
    enabled: bool | None = None
    type: Annotated[str, Field(max_length=255)] | None = None
    args: list[JsonValue] | None = None
    meta: dict[str, JsonValue] | None = None
    options: OptionsIn | None = None
    job_template: CronTemplateIn | None = None


class CronPatch(Body):
    """A cron that is switched on or off."""

    enabled: bool


class WorkflowIn(Body):
    """Jobs that belong together: a chain's `steps`, a group's or batch's `jobs`, each a job or a workflow again.

    Without a type they are steps that name those before them in `depends_on`, and only these have `options` that are
    meant for all (ojs-http-binding, section 14).
    """

    type: Literal["chain", "group", "batch"] | None = None
    options: OptionsIn | None = None
    name: Annotated[str, Field(max_length=255)] | None = None
    steps: list[dict[str, JsonValue]] | None = None
    jobs: list[dict[str, JsonValue]] | None = None
    callbacks: dict[Literal["on_complete", "on_success", "on_failure"], dict[str, JsonValue]] | None = None


class Choice(Exact):
    """Which jobs something is to be done to. A condition that is null would be none, and is refused."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_null(cls, value: object) -> object:
        if value is None:
            message = "must not be null; leave it out if it is not to choose."
            raise ValueError(message)
        return value


class FilterIn(Choice):
    """What must hold of a job, all of it; a `type` may end in `*`."""

    queue: Name | None = None
    state: AnyState | None = None
    type: Name | None = None
    since: Moment | None = None
    until: Moment | None = None


class Confirmed(Choice):
    """What is to be done to many jobs at once, said twice."""

    confirm: bool | None = None


class BulkIn(Confirmed):
    """The jobs that are meant; an empty filter means all. `cursor` goes on behind the request that answered with it."""

    filter: FilterIn | None = None
    cursor: str | None = None


class PurgeIn(Confirmed):
    """The jobs of a queue that are to go: those in these states, or only those of them that had ended by a time."""

    states: Annotated[list[AnyState], Field(min_length=1)]
    older_than: Moment | None = None


class PooledIn(Body):
    """A queue of a pool."""

    weight: Weight = 1.0


class PoolIn(Body):
    """Queues that are fetched from together, as a list, or by name with their weights."""

    queues: Annotated[list[QueueName], Field(min_length=1, max_length=100)] | dict[str, PooledIn]
    strategy: Strategy | None = None
    weights: dict[str, Weight] | None = None


class SubscriptionIn(Body):
    """Where events are to be posted."""

    url: Annotated[str, Field(max_length=2_000, pattern=r"^https?://[^\s/]+")]
    events: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(min_length=1)]
    secret: Annotated[str, Field(min_length=8, max_length=255)] | None = None
    active: bool | None = None


class SubscriptionPatch(Body):
    """What changes of a subscription."""

    url: Annotated[str, Field(max_length=2_000, pattern=r"^https?://[^\s/]+")] | None = None
    events: Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(min_length=1)] | None = None
    active: bool | None = None


def or_default(value: T | None, default: T) -> T:
    """Return a value, or the default where it was null or nothing."""
    return default if value is None else value


def plain(body: BaseModel | None) -> dict[str, Any]:
    """Return a body as it came: without what was not given, or null."""
    return {} if body is None else body.model_dump(exclude_none=True, exclude_unset=True)
