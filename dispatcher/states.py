"""The states of a call and the moves between them: the one source for guards, badges and the diagram.

`python -m dispatcher.states` prints the diagram of docs/reference/states.md.
"""

import sys
from enum import StrEnum
from typing import Final, Self


class Labelled(StrEnum):
    """Texts, each with a label for people: its own, or the text itself."""

    _value_: str
    label: str

    def __new__(cls, value: str, label: str = "") -> Self:
        """Make a member of its text and its label."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.label = label or value.capitalize().replace("_", " ")
        return member


class State(Labelled):
    """The state of a call: the Open Job Spec's states (ojs-core, section 5) and `dispatched`."""

    SCHEDULED = "scheduled"
    PENDING = "pending"
    AVAILABLE = "available", "Waiting"
    DISPATCHED = "dispatched"
    ACTIVE = "active"
    RETRYABLE = "retryable"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"


class OnLimit(StrEnum):
    """What happens to a call that a limit stops (Open Job Spec, rate limiting, section 6.2)."""

    WAIT = "wait"
    RESCHEDULE = "reschedule"
    DROP = "drop"


class Delivery(Labelled):
    """How the calls of a queue reach its workers."""

    BROKER = "broker", "Through Celery's broker"
    DIRECT = "direct", "Celery workers take them from PostgreSQL"
    HTTP = "http", "Fetched over HTTP"


class OnFull(StrEnum):
    """What happens to a job sent to a queue that is full (Open Job Spec, backpressure)."""

    REJECT = "reject"
    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"


class Reason(Labelled):
    """Why a call was discarded."""

    FAILED = "failed", "Failed for good"
    EXPIRED = "expired", "Not started in time"
    LIMIT = "limit", "Dropped at a limit"
    POISON = "poison", "Poison: it kills its workers"
    QUEUE_FULL = "queue_full", "Made room in a full queue"


WAITING: Final = (State.PENDING, State.SCHEDULED, State.AVAILABLE)
"""A call is sent into one of these, and waits for its start."""

IN_FLIGHT: Final = (State.DISPATCHED, State.ACTIVE)
"""A call in one of these holds its slots and has a ticket."""

DUE: Final = (State.SCHEDULED, State.RETRYABLE)
"""A call in one of these waits for its `scheduled_at`."""

TERMINAL: Final = (State.COMPLETED, State.CANCELLED, State.DISCARDED)
"""A call in one of these has ended; only a person's retry opens it again."""

MOVES: Final[dict[State, tuple[State, ...]]] = {
    State.PENDING: (State.AVAILABLE, State.SCHEDULED, State.CANCELLED, State.DISCARDED),
    State.SCHEDULED: (State.AVAILABLE, State.CANCELLED, State.DISCARDED),
    State.AVAILABLE: (State.DISPATCHED, State.ACTIVE, State.SCHEDULED, State.CANCELLED, State.DISCARDED),
    State.DISPATCHED: (
        State.ACTIVE,
        State.AVAILABLE,
        State.SCHEDULED,
        State.COMPLETED,
        State.RETRYABLE,
        State.CANCELLED,
        State.DISCARDED,
    ),
    State.ACTIVE: (
        State.COMPLETED,
        State.RETRYABLE,
        State.AVAILABLE,
        State.SCHEDULED,
        State.CANCELLED,
        State.DISCARDED,
    ),
    State.RETRYABLE: (State.AVAILABLE, State.CANCELLED, State.DISCARDED),
    State.COMPLETED: (State.AVAILABLE,),
    State.CANCELLED: (State.AVAILABLE,),
    State.DISCARDED: (State.AVAILABLE,),
}
"""Every allowed move. Without the broker, `available` becomes `active` at once.

`dispatched` may end at once: the commit of its claim may be lost in a database crash."""


def diagram() -> str:
    """Draw the states and their moves as a Mermaid state diagram."""
    begins = [f"[*] --> {state}" for state in WAITING]
    moves = [f"{state} --> {after}" for state, allowed in MOVES.items() for after in allowed]
    ends = [f"{state} --> [*]" for state in TERMINAL]
    return "\n    ".join(["stateDiagram-v2", *begins, *moves, *ends]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(diagram())
