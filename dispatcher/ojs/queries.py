"""Query strings of lists: validated first, and published in the schema."""

from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from dispatcher.ojs import fields


class QueryString(BaseModel):
    """What a list is asked for; an empty text is none."""

    @field_validator("*", mode="before")
    @classmethod
    def _is_given(cls, value: object) -> object:
        return None if value == "" else value


class PageIn(QueryString):
    """Which page: after a `cursor`, or by number or offset; of at most 200 rows."""

    limit: fields.Whole | None = None
    per_page: fields.Whole | None = None
    page: fields.Whole | None = None
    offset: Annotated[int, Field(ge=0)] | None = None
    cursor: str | None = None


class CronsIn(QueryString):
    """Which crons."""

    enabled: bool | None = None


class LettersIn(QueryString):
    """Which dead letters."""

    queue: str | None = None
    type: str | None = None


class JobsIn(LettersIn):
    """Which jobs; a `type` may end in `*`."""

    state: fields.AnyState | None = None
    since: fields.Moment | None = None
    until: fields.Moment | None = None


class EventsIn(QueryString):
    """Which events: of these types (`job.*` for a family), queues and types of jobs, each list with commas."""

    types: str | None = None
    queues: str | None = None
    job_types: str | None = None


class EventsPageIn(EventsIn):
    """Which events, and how many."""

    limit: fields.Whole | None = None
