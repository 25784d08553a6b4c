"""Fields and kinds of request bodies: validated first, and published in the schema."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from dispatcher.limits.durations import parse_duration
from dispatcher.ojs.wire import UUID7, Problem, parse_time
from dispatcher.validate import KEY_PATTERN, STORED_KEY_PATTERN

_MILLISECONDS = 366 * 86_400_000


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


class Body(BaseModel):
    """A body whose known fields are validated strictly; unknown fields are allowed."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())


class StrictBody(Body):
    """A body whose known fields are validated strictly; unknown ones are refused with the names of those there are."""

    model_config = ConfigDict(strict=True, extra="forbid")

    @model_validator(mode="wrap")
    @classmethod
    def _name_fields(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(value)
        except ValidationError as error:
            known = f"is not a field here; there are {', '.join(cls.model_fields)}."
            lines: list[InitErrorDetails] = []
            for each in error.errors():
                is_unknown = each["type"] == "extra_forbidden" and len(each["loc"]) == 1
                kind = PydanticCustomError(each["type"], known if is_unknown else each["msg"])
                lines.append({"type": kind, "loc": each["loc"], "input": each["input"]})
            raise ValidationError.from_exception_data(cls.__name__, lines) from error


def given_fields(body: BaseModel | None) -> dict[str, Any]:
    """Return the fields of a body that were given and are not null."""
    return {} if body is None else body.model_dump(exclude_none=True, exclude_unset=True)
