"""The call that the current task runs for, as its message names it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from celery import current_task

from dispatcher.errors import ConfigurationError
from dispatcher.messages.tickets import CHOSEN_HEADER, headers_of, ticket_in


@dataclass(frozen=True, kw_only=True)
class CurrentCall:
    """The call that a task runs for."""

    id: UUID
    chosen_keys: Mapping[str, str] = field(default_factory=dict)
    """The key that was chosen for this attempt, by the pattern of each `any_of`."""

    @property
    def key(self) -> str | None:
        """The key that was chosen for this attempt; None for a call without `any_of`.

        Raises ConfigurationError for a call with several of them.
        """
        if len(self.chosen_keys) > 1:
            message = f"the call has several any_of: read chosen_keys[pattern], of {', '.join(self.chosen_keys)}."
            raise ConfigurationError(message)
        return next(iter(self.chosen_keys.values()), None)


def current_call() -> CurrentCall | None:
    """Return the call that the current task runs for; None outside of one, or if it came without the dispatcher."""
    request = current_task.request if current_task else None
    if request is None or request.called_directly:
        return None
    headers = headers_of(request)
    if ticket_in(headers, request.id) is None:
        return None
    return CurrentCall(id=UUID(request.id), chosen_keys=headers.get(CHOSEN_HEADER) or {})
