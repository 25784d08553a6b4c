"""Tickets in messages: the headers that carry them, and which message may use them. Pure."""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

TICKET_HEADER: Final = "dispatcher_ticket"
"""The message header that carries the ticket."""
CALL_HEADER: Final = "dispatcher_call"
"""The message header that names the ticket's call: a task may pass its own headers on to another message."""
CHOSEN_HEADER: Final = "dispatcher_chosen_keys"
"""The message header that has the key which was chosen of each group."""
TIMES_HEADER: Final = "dispatcher_times"
"""The message header that has `eta` and `expires` as tasks see them: Celery's own would have workers act on them."""
OF_TICKET: Final = (TICKET_HEADER, CALL_HEADER, CHOSEN_HEADER, TIMES_HEADER)
"""The headers that only the message of a call has."""


def headers_of(request: Any) -> dict[str, Any]:
    """Return the headers of the message of a running task's request, with those above wherever Celery keeps them."""
    named = {name: request.get(name) for name in OF_TICKET}
    return {**{name: value for name, value in named.items() if value is not None}, **(request.headers or {})}


def ticket_in(headers: Mapping[str, Any], message_id: object) -> UUID | None:
    """Return the ticket of a message; None if it has none, or the headers of another call's message."""
    if headers.get(CALL_HEADER, message_id) != message_id or uuid_of(message_id) is None:
        return None
    return uuid_of(headers.get(TICKET_HEADER))


def uuid_of(text: object) -> UUID | None:
    """Return the UUID that a text is; None if it is anything else."""
    try:
        return UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None
