"""Request bodies of what administrators change: queues, limits, pools, webhooks, many jobs at once."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, field_validator, model_validator

from dispatcher.limits.turns import MOST_WEIGHT
from dispatcher.ojs import fields
from dispatcher.ojs.fields import Body, StrictBody
from dispatcher.ojs.requests import RateIn


class PauseIn(StrictBody):
    """The reason for a pause or a resume, for the history."""

    reason: fields.Text | None = None
    until: JsonValue = None

    @field_validator("until")
    @classmethod
    def _has_no_end(cls, until: object) -> None:
        """Refuse an end, and name the alternative."""
        if until is not None:
            message = "a pause has no end: PUT /rate-limits/queue:NAME with concurrency 0 and expires_at instead."
            raise ValueError(message)


class LimitIn(StrictBody):
    """The limits of a queue; null removes one, and absent ones do not change."""

    concurrency: fields.Count | None = None
    per_worker: fields.AtLeastOne | None = None
    rate: RateIn | None = None
    throttle: RateIn | None = None

    def named(self) -> dict[str, Any]:
        """Return the given limits, None for those to remove."""
        return self.model_dump(exclude_unset=True, include={"concurrency", "per_worker", "rate", "throttle"})


class OverrideIn(LimitIn):
    """Limits that override a key's own until a time; null and absent ones do not change."""

    expires_at: fields.Moment | None = None


class ObserveIn(StrictBody):
    """Whether the limits of a key only count what they would delay, and the reason, for the history."""

    observe: bool
    reason: fields.Text | None = None


class QueueLimitIn(LimitIn):
    """Limits in a queue's configuration, where a rate may be given without its name (ojs-admin-api, 6.6)."""

    limit: fields.AtLeastOne | None = None
    period: fields.Duration | None = None

    @model_validator(mode="after")
    def _name_rate(self) -> Self:
        if self.limit is None and self.period is None:
            return self
        if self.limit is None or self.period is None or "rate" in self.model_fields_set:
            message = "a rate needs both a limit and a period, given once."
            raise ValueError(message)
        self.rate = RateIn(limit=self.limit, period=self.period)
        return self


class BackpressureIn(Body):
    """The bound of waiting jobs in a queue, and what happens above it; 0 is no bound."""

    max_depth: fields.Count
    strategy: Literal["reject", "block", "drop_oldest"] | None = None
    warning_threshold: Annotated[float, Field(ge=0, le=1)] | None = None


class QueueConfigIn(StrictBody):
    """The configuration of a queue; absent and null fields do not change."""

    backpressure: BackpressureIn | None = None
    concurrency: fields.Count | None = None
    rate_limit: QueueLimitIn | None = None
    delivery: Literal["broker", "direct", "http"] | None = None
    weight: Annotated[int, Field(ge=1, le=MOST_WEIGHT)] | None = None


class Selection(StrictBody):
    """Selects jobs to change. A null condition would select all, so it is refused."""

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_null(cls, value: object) -> object:
        if value is None:
            message = "must not be null; omit it instead."
            raise ValueError(message)
        return value


class FilterIn(Selection):
    """Conditions that all must hold; a `type` may end in `*`."""

    queue: fields.Name | None = None
    state: fields.AnyState | None = None
    type: fields.Name | None = None
    since: fields.Moment | None = None
    until: fields.Moment | None = None


class BulkRequest(Selection):
    """A request to change many jobs; it must be confirmed."""

    confirm: bool | None = None


class BulkIn(BulkRequest):
    """Selects jobs; an empty filter selects all. `cursor` continues after the request that returned it."""

    filter: FilterIn | None = None
    cursor: str | None = None


class PurgeIn(BulkRequest):
    """Selects the jobs of a queue to delete: those in these states, or only those that ended before a time."""

    states: Annotated[list[fields.AnyState], Field(min_length=1)]
    older_than: fields.Moment | None = None


class PoolQueueIn(Body):
    """A queue of a pool."""

    weight: fields.Weight = 1.0


class PoolIn(Body):
    """Queues to fetch from together, as a list, or by name with weights."""

    queues: Annotated[list[fields.QueueName], Field(min_length=1, max_length=100)] | dict[str, PoolQueueIn]
    strategy: fields.Strategy | None = None
    weights: dict[str, fields.Weight] | None = None


class SubscriptionIn(Body):
    """A webhook: where to post which events."""

    url: fields.Url
    events: fields.EventTypes
    secret: Annotated[str, Field(min_length=8, max_length=255)] | None = None
    active: bool | None = None


class SubscriptionPatch(Body):
    """Changes of a subscription."""

    url: fields.Url | None = None
    events: fields.EventTypes | None = None
    active: bool | None = None
