"""Field types of requests: validated first, and published in the schema."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from dispatcher.limits.durations import parse_duration
from dispatcher.ojs.wire import UUID7, Problem, parse_time
from dispatcher.validate import KEY_PATTERN, STORED_KEY_PATTERN

_MILLISECONDS = 366 * 86_400_000
_INTERVAL = r"^P(?!$)(\d{1,4}W)?(\d{1,3}D)?(T(?=\d)(\d{1,4}H)?(\d{1,5}M)?(\d{1,7}(\.\d{1,6})?S)?)?$"


def _moment(value: str) -> str:
    try:
        parse_time("time", value)
    except Problem as error:
        raise ValueError(str(error)) from error
    return value


def _duration(value: str) -> str:
    parse_duration(value, "duration")
    return value


Moment = Annotated[
    str,
    AfterValidator(_moment),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "date-time"},
                {"type": "string", "pattern": r"^\+PT[1-9]\d{0,4}S$", "description": "from now, such as +PT5S"},
            ]
        }
    ),
]
Duration = Annotated[
    str,
    AfterValidator(_duration),
    WithJsonSchema({"type": "string", "pattern": r"^PT[1-9]\d{0,5}S$", "description": "ISO 8601, such as PT1M"}),
]
QueueName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=128)]
KeyName = Annotated[str, Field(pattern=KEY_PATTERN, max_length=240)]
SpentKey = Annotated[str, Field(pattern=STORED_KEY_PATTERN, max_length=240)]
"""A key that a job spends, or with a * at the end any one of those whose names begin so."""
WorkerName = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[!-~]+( [!-~]+)*$")]
Text = Annotated[str, Field(max_length=4_000)]
Weight = Annotated[float, Field(gt=0, le=1e6)]
Strategy = Literal["strict", "round-robin", "weighted", "least-loaded"]
Span = Annotated[int, Field(ge=0, le=_MILLISECONDS)]
Lease = Annotated[int, Field(ge=0, le=43_200_000)]
"""A lease, in milliseconds: at most 12 hours."""
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
AtLeastOne = Annotated[int, Field(ge=1, le=2**31 - 1)]
Whole = Annotated[int, Field(ge=1)]
JobId = Annotated[str, Field(pattern=f"^{UUID7.pattern}$")]
JobType = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)*$", max_length=255)]
AnyId = Annotated[str, Field(min_length=1, max_length=64)]
Url = Annotated[str, Field(max_length=2_000, pattern=r"^https?://[^\s/]+")]
EventTypes = Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(min_length=1)]
StateName = Literal["scheduled", "pending", "available", "active", "retryable", "completed", "cancelled", "discarded"]
AnyState = Literal[StateName, "dispatched"]
Name = Annotated[str, Field(min_length=1, max_length=255)]
