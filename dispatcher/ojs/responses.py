"""What answers look like: published in the schema. What they hold is written by the views."""

from typing import Any

from pydantic import BaseModel, ConfigDict

ERRORS = frozenset({400, 401, 403, 404, 405, 409, 413, 422, 429, 500, 503})


class Reply(BaseModel):
    """An answer; what is not named may come, too."""

    model_config = ConfigDict(extra="allow")


class ErrorObject(Reply):
    """What went wrong (ojs-http-binding, section 16)."""

    code: str
    message: str
    retryable: bool
    request_id: str


class ErrorReply(Reply):
    """The envelope of an error."""

    error: ErrorObject


class JobSummary(Reply):
    """What a job is, and its state."""

    id: str
    type: str
    queue: str
    state: str


class Job(JobSummary):
    """A job (ojs-core, section 5)."""

    args: list[Any]
    attempt: int
    created_at: str


class JobReply(Reply):
    """One job."""

    job: Job


class JobsReply(Reply):
    """Jobs."""

    jobs: list[Job]


class SeenJobReply(Reply):
    """One job; whole for who may read it."""

    job: Job | JobSummary


class SeenJobsReply(Reply):
    """Jobs; each whole if it is new, or for who may read it."""

    jobs: list[Job | JobSummary]


class Acknowledged(Reply):
    """A job that is done."""

    acknowledged: bool
    id: str
    job_id: str
    state: str


class Failed(Reply):
    """A job that failed, or was given back."""

    id: str
    job_id: str
    state: str
    attempt: int
    max_attempts: int
    rate_limit_until: str | None = None


class Directive(Reply):
    """What a worker is to do."""

    state: str
    server_time: str


class Pagination(Reply):
    """Where in a list an answer stands."""

    total: int
    total_is_exact: bool = True
    has_more: bool
    next_cursor: str | None = None


class ItemsReply(Reply):
    """A page of a list."""

    items: list[dict[str, Any]]
    pagination: Pagination


class Limits(Reply):
    """A key: its limits, and what is spent of them (ojs-rate-limiting, section 10)."""

    key: str
    waiting_count: int
    oversized_count: int


def replies(of: type[BaseModel] | None = Reply, status: int = 200) -> dict[Any, Any]:
    """Return what an endpoint answers with, for the schema."""
    return {status: of, ERRORS: ErrorReply}
