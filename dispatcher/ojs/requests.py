"""Request bodies: validated first, and published in the schema.

An explicit null means the same as an absent field. Unknown fields are kept where the spec says so, otherwise ignored;
but refused where jobs are selected or limits are set: there a typo would do more, or limit less, than intended.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, ValidationInfo, field_validator

from dispatcher.limits.policy import LARGEST
from dispatcher.ojs import fields
from dispatcher.ojs.fields import Body, StrictBody

UNIQUE_FIELDS: Final = frozenset({"type", "queue", "args", "meta"})
"""The fields of a job that may decide whether it is unique."""


class RateIn(StrictBody):
    """A number of starts in a period."""

    limit: fields.AtLeastOne
    period: fields.Duration


class RateLimitIn(StrictBody):
    """A policy in one of three formats: the spec's text, `rate: 1, period: "second"`, or `max_per_second`."""

    key: fields.KeyName | None = None
    concurrency: fields.Count | None = None
    per_worker: fields.AtLeastOne | None = None
    rate: RateIn | fields.AtLeastOne | None = None
    throttle: RateIn | None = None
    on_limit: Literal["wait", "reschedule", "drop"] | None = None
    period: Literal["second", "minute", "hour", "day"] | None = None
    max_per_second: fields.AtLeastOne | None = None


class RetryIn(StrictBody):
    """The retry policy of a job (ojs-retry); intervals as ISO 8601, or in milliseconds."""

    max_attempts: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    initial_interval: fields.Duration | None = None
    initial_interval_ms: fields.Span | None = None
    backoff_coefficient: Annotated[float, Field(ge=1, le=100)] | None = None
    max_interval: fields.Duration | None = None
    max_interval_ms: fields.Span | None = None
    jitter: bool | None = None
    non_retryable_errors: list[Annotated[str, Field(min_length=1, max_length=255)]] | None = None
    backoff_strategy: Literal["exponential", "linear", "polynomial", "constant", "none"] | None = None
    on_exhaustion: Literal["discard", "dead_letter"] | None = None


class UniqueIn(StrictBody):
    """Jobs that are equal in these fields: one at a time (ojs-unique-jobs).

    key: what the core and the JSON format call the fields of the arguments; the SDKs name those of the job here, too.
    """

    key: Annotated[list[str], Field(min_length=1)] | None = None

    keys: Annotated[list[Literal["type", "queue", "args", "meta"]], Field(min_length=1)] | None = None
    args_keys: Annotated[list[str], Field(min_length=1)] | None = None
    meta_keys: list[str] | None = None
    period: fields.Duration | None = None
    period_ms: fields.Span | None = None
    states: Annotated[list[fields.StateName], Field(min_length=1)] | None = None
    on_conflict: Literal["reject", "ignore", "replace", "replace_except_schedule"] | None = None

    @field_validator("key")
    @classmethod
    def _is_not_mixed(cls, key: list[str] | None) -> list[str] | None:
        """Refuse names of the job's fields beside those of the arguments'."""
        if key and 0 < len(UNIQUE_FIELDS.intersection(key)) < len(set(key)):
            message = "names fields of the job and of its arguments; give keys and args_keys instead."
            raise ValueError(message)
        return key

    @field_validator("keys", "args_keys")
    @classmethod
    def _is_what_key_names(cls, names: list[str] | None, given: ValidationInfo) -> list[str] | None:
        """Refuse other fields than `key` names."""
        if names and (key := given.data.get("key")):
            is_of_job = UNIQUE_FIELDS.issuperset(key)
            if is_of_job == (given.field_name == "keys") and set(key) != set(names):
                message = "names other fields than key; give one of them."
                raise ValueError(message)
        return names


class OptionsIn(Body):
    """The options of a job. `keys`: names, or costs by name, in addition to the key of its rate limit."""

    queue: fields.QueueName | None = None
    priority: Annotated[int, Field(ge=-100, le=100)] | None = None
    timeout_ms: fields.Span | None = None
    delay_until: fields.Moment | None = None
    scheduled_at: fields.Moment | None = None
    expires_at: fields.Moment | None = None
    retry: RetryIn | None = None
    unique: UniqueIn | None = None
    rate_limit: RateLimitIn | None = None
    keys: list[fields.SpentKey] | dict[str, fields.AtLeastOne] | None = None
    visibility_timeout_ms: fields.Lease | None = None
    pending: bool | None = None
    tags: list[fields.Text] | None = None


class JobFields(OptionsIn):
    """What jobs and crons have in common; the options may also be fields of the job itself."""

    meta: dict[str, JsonValue] | None = None
    options: OptionsIn | None = None


class JobIn(JobFields):
    """A job to send. Unknown fields are stored and returned."""

    type: fields.JobType
    args: list[JsonValue]
    id: fields.JobId | None = None


class BatchIn(Body):
    """Jobs to send, all or none."""

    jobs: Annotated[list[JobIn], Field(min_length=1, max_length=10_000)]


# What workers send may have more fields: SDKs do (the heartbeat's `hostname`, `pid`, `labels`), and later versions of
# the spec may add optional ones (ojs-http-binding, section 3.3; ojs-json-format, section 9.2). They are ignored.


class FetchIn(Body):
    """A request for jobs of these queues, in this order; `wait_ms`: how long the response may wait for a job."""

    queues: Annotated[list[fields.QueueName], Field(min_length=1, max_length=100)]
    pool: fields.Text | None = None
    strategy: fields.Strategy | None = None
    weights: dict[str, fields.Weight] | None = None
    count: Annotated[int, Field(ge=1, le=500)] | None = None
    worker_id: fields.WorkerName | None = None
    visibility_timeout_ms: fields.Lease | None = None
    wait_ms: Annotated[int, Field(ge=0, le=30_000)] | None = None


class Proof(Body):
    """The proof of a report. Only the ticket is new at each fetch; an attempt's number needs the worker's name."""

    ticket: fields.AnyId | None = None
    attempt: Annotated[int, Field(ge=1)] | None = None
    worker_id: fields.WorkerName | None = None


class Report(Proof):
    """The job of a report, and its proof."""

    job_id: fields.AnyId


class AckIn(Report):
    """A completed job."""

    result: JsonValue = None


class ErrorIn(Body):
    """The error of an attempt. `rate_limit_until`: the provider asked to stop until then."""

    code: Annotated[str, Field(max_length=255)] | None = None
    type: Annotated[str, Field(max_length=255)] | None = None
    message: str
    retryable: bool | None = None
    details: dict[str, JsonValue] | None = None
    backtrace: list[str] | None = None
    rate_limit_until: fields.Moment | None = None


class NackIn(Report):
    """A failed job; `requeue` returns it to its queue instead, and the attempt is not counted."""

    error: ErrorIn
    requeue: bool | None = None


class HeartbeatIn(Body):
    """A worker that is alive, and its jobs: a list of ids, or their number."""

    worker_id: fields.WorkerName
    active_jobs: list[fields.AnyId] | fields.Count | None = None
    active_job_ids: list[fields.AnyId] | None = None
    visibility_timeout_ms: fields.Lease | None = None
    state: Annotated[str, Field(max_length=16)] | None = None


class ProgressIn(Proof, StrictBody):
    """The progress of a running job: from 0 to 1, `data`, or both. No checkpoint is kept, so one is refused."""

    message: fields.Text | None = None
    data: dict[str, JsonValue] | None = None
    progress: Annotated[float | None, Field(ge=-1e9, le=1e9, validate_default=True)] = None

    @field_validator("progress")
    @classmethod
    def _is_given_or_data(cls, progress: float | None, given: ValidationInfo) -> float | None:
        """Refuse a report of neither (ojs-progress, section 5.2)."""
        if progress is None and given.data.get("data") is None:
            message = "required where there is no data."
            raise ValueError(message)
        return progress


class PercentIn(Report, StrictBody):
    """The progress of a running job, from 0 to 100, as the SDKs send it."""

    percentage: Annotated[float, Field(ge=-1e9, le=1e9)]
    message: fields.Text | None = None
    data: dict[str, JsonValue] | None = None


class CronTemplateIn(JobFields):
    """The job of a cron."""

    type: fields.JobType
    args: list[JsonValue] | None = None


class CronIn(JobFields):
    """A periodic job: with the spec's fields, or with a `job_template`."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=190)]
    cron: Annotated[str, Field(max_length=255)] | None = None
    expression: Annotated[str, Field(max_length=255)] | None = None
    timezone: Annotated[str, Field(max_length=63)] | None = None
    overlap_policy: Literal["skip", "allow", "cancel_previous", "enqueue"] | None = None
    enabled: bool | None = None
    type: Annotated[str, Field(max_length=255)] | None = None
    args: list[JsonValue] | None = None
    job_template: CronTemplateIn | None = None


class CronPatch(Body):
    """Enables or disables a cron."""

    enabled: bool


class WorkflowIn(Body):
    """Jobs that belong together: a chain's `steps`, or a group's or batch's `jobs`; each is a job or a workflow.

    Without a type: steps that depend on those in `depends_on`; only these have `options` that apply to all
    (ojs-http-binding, section 14).
    """

    type: Literal["chain", "group", "batch"] | None = None
    options: OptionsIn | None = None
    name: Annotated[str, Field(max_length=255)] | None = None
    steps: list[dict[str, JsonValue]] | None = None
    jobs: list[dict[str, JsonValue]] | None = None
    callbacks: dict[Literal["on_complete", "on_success", "on_failure"], dict[str, JsonValue]] | None = None
