"""Sent: the calls of a transaction, collected until its commit and then dispensed together, once."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from dispatcher import sql

_SENT = "dispatcher_sent"
"""The attribute of a connection that holds them."""


@dataclass(frozen=True)
class Sent:
    """Lanes to dispense, each with the first of its new positions, and calls without a lane, to place before that."""

    lanes: dict[int, int] = field(default_factory=dict)
    calls: set[UUID] = field(default_factory=set)


def after_commit(
    serve: Callable[[Sent], object], *, lanes: Mapping[int, int] | None = None, calls: Collection[UUID] = ()
) -> None:
    """Serve these lanes and calls after the commit, together with the others of the transaction."""
    if not (lanes or calls):
        return
    connection = sql.connection()
    if not connection.run_on_commit:
        # These are left from a transaction that was rolled back.
        connection.__dict__.pop(_SENT, None)
    sent: Sent = connection.__dict__.setdefault(_SENT, Sent())
    # The first recorded position of a lane is the lowest: positions are drawn in order.
    sent.lanes.update({**(lanes or {}), **sent.lanes})
    sent.calls.update(calls)

    def serve_once() -> None:
        found = Sent(lanes=dict(sent.lanes), calls=set(sent.calls))
        sent.lanes.clear()
        sent.calls.clear()
        if found.lanes or found.calls:
            serve(found)

    sql.after_commit(serve_once)
