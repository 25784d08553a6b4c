"""The errors of the Open Job Spec: what a request is refused for, and what is recorded on a job."""

from collections.abc import Sequence

from dispatcher.errors import DispatcherError


class DuplicateCall(DispatcherError):
    """A call with the same id, or the same unique key, exists already; nothing was written."""

    def __init__(self, call: str | None = None, state: str | None = None, unique_key: str | None = None) -> None:
        """Keep the id and state of the existing call, None where the sender may not know them, and the unique key."""
        self.call, self.state, self.unique_key = call, state, unique_key
        what = "the same id" if unique_key is None else "the same unique key"
        where = "in a queue that the sender may not send to" if call is None else f"{call}, {state}"
        super().__init__(f"a job with {what} exists already: {where}.")


class QueueFull(DispatcherError):
    """A queue holds as many waiting calls as it may; nothing was written. Send again later."""

    def __init__(self, queue: str, depth: int, bound: int, strategy: str, tasks: Sequence[str] = ()) -> None:
        """Keep how many calls wait, how many may, what the queue does with more, and what it did not take."""
        self.queue, self.depth, self.bound, self.strategy, self.tasks = queue, depth, bound, strategy, tasks
        super().__init__(f"queue {queue!r} has reached its depth bound ({bound}).")


class AttemptTimedOut(DispatcherError):
    """A call that was fetched over HTTP ran for longer than its timeout."""


class LeaseLapsed(DispatcherError):
    """The lease of a call that was fetched over HTTP expired without a heartbeat or a result."""


class WebhookRefused(DispatcherError):
    """An event can't be delivered, and trying again would not help: its receiver refused it.

    Correct the subscription's URL, or the receiver; then retry the dead letter.
    """
