"""Response bodies: validated and rendered as the schema says."""

import re
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from ninja import Router
from ninja.constants import NOT_SET
from pydantic import BaseModel, ConfigDict

Answer = dict[str, Any]
View = TypeVar("View", bound=Callable[..., Any])
Shown = TypeVar("Shown")

ERRORS: Final = frozenset({400, 401, 403, 404, 405, 409, 411, 413, 422, 429, 500, 503})


class Reply(BaseModel):
    """A response; additional fields are allowed."""

    model_config = ConfigDict(extra="allow")


class ErrorObject(Reply):
    """An error (ojs-http-binding, section 16)."""

    code: str
    message: str
    retryable: bool
    request_id: str


class ErrorReply(Reply):
    """An error response."""

    error: ErrorObject


class JobSummary(Reply):
    """The identity and the state of a job."""

    id: str
    type: str
    queue: str
    state: str


class Job(JobSummary):
    """A job (ojs-core, section 5)."""

    args: list[Any]
    attempt: int
    created_at: str


class One(Reply, Generic[Shown]):
    """One job."""

    job: Shown


class Many(Reply, Generic[Shown]):
    """Jobs."""

    jobs: list[Shown]


JobOrSummary = Job | JobSummary
"""A job; only its summary without the scope `read`, where another has sent it."""


class AckReply(Reply):
    """A job after a report."""

    id: str
    job_id: str
    state: str


class NackReply(AckReply):
    """A job that failed, or was returned to its queue."""

    attempt: int
    max_attempts: int


class HeartbeatReply(Reply):
    """The directive of a worker."""

    state: str


class Pagination(Reply):
    """The position of a page in its list."""

    total: int
    has_more: bool


class ItemsReply(Reply):
    """A page of a list."""

    items: list[dict[str, Any]]
    pagination: Pagination


class RateLimitReply(Reply):
    """A key: its limits and their use (ojs-rate-limiting, section 10)."""

    key: str
    waiting_count: int
    oversized_count: int


def replies(of: type[BaseModel] | None = Reply, status: int = 200) -> dict[Any, Any]:
    """Return the response types of an endpoint."""
    return {status: of, ERRORS: ErrorReply}


class Routes(Router):
    """The endpoints of a resource. In the schema, one is named by its method and path, and its docstring says the rest.

    Without a response type it responds with an object.
    """

    def api_operation(
        self, methods: list[str], path: str, *, response: Any = NOT_SET, **given: Any
    ) -> Callable[[View], View]:
        """Return the decorator of a view."""
        given["operation_id"] = re.sub(r"\W+", "_", f"{methods[0].lower()}{path}").strip("_")
        response = replies() if response is NOT_SET else response

        def add(view: View) -> View:
            given["summary"] = (view.__doc__ or "").partition("\n")[0]
            return Router.api_operation(self, methods, path, response=response, **given)(view)

        return add
