"""The broker: producers with a bounded wait for each answer."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import getpid
from typing import Any, Final
from weakref import WeakKeyDictionary

from celery import Celery
from celery.app.amqp import AMQP
from kombu.connection import Connection
from kombu.messaging import Producer
from kombu.pools import ProducerPool, producers

BOUND_S: Final = 2.0
"""How long publishing waits at the most for each answer of the broker."""


_pools: Final[WeakKeyDictionary[AMQP, tuple[int, ProducerPool]]] = WeakKeyDictionary()
"""The process that made the pool of each app's producers, and the pool: connections do not survive a fork."""


class _Reach:
    is_own = False


def keep_to_itself() -> None:
    """Publish nothing from now on: the transport is in this process's memory, which no other process reads."""
    _Reach.is_own = True


@contextmanager
def kept_to_itself() -> Iterator[None]:
    """Publish nothing inside."""
    before, _Reach.is_own = _Reach.is_own, True
    try:
        yield
    finally:
        _Reach.is_own = before


def reaches_workers() -> bool:
    """Return whether other processes get what this one publishes."""
    return not _Reach.is_own


def bounded_producers(app: Celery) -> ProducerPool:
    """Return this process's producers, which wait at most BOUND_S for each answer of the broker.

    They have their own pool, because workers read from the broker with the project's transport options.
    """
    known = _pools.get(app.amqp)
    if known is None or known[0] != getpid():
        given, patience = app.conf.broker_transport_options, app.conf.broker_connection_timeout or BOUND_S
        wait = min(patience, BOUND_S)
        with app.connection_for_write() as probe:
            options = _transport_options(probe.transport.driver_type, given)
        pool = producers[app.connection_for_write(transport_options=options, connect_timeout=wait)]
        pool.limit = app.pool.limit
        known = _pools[app.amqp] = getpid(), pool
    return known[1]


def _transport_options(kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that bound each answer of a broker of this kind; stricter values of the project apply."""
    match kind:
        case "redis":
            names = ("socket_timeout", "socket_connect_timeout")
            return {name: min(given.get(name) or BOUND_S, BOUND_S) for name in names}
        case "amqp":
            return {"confirm_publish": given.get("confirm_publish", True)}
        case _:
            return {}


def connect(connection: Connection) -> None:
    """Connect with one attempt per host: kombu's default retries for seconds while the sender waits."""
    connection.ensure_connection(max_retries=max(len(connection.alt), 1) - 1, interval_start=0, interval_step=0)
    if connection.transport.driver_type == "amqp":
        # py-amqp bounds only the time to connect; a read or write in a frame would wait for ever.
        connection.connection.transport.sock.settimeout(BOUND_S)


def renew(producer: Producer) -> None:
    """Drop the connection of a producer; `connect` makes another."""
    producer.connection.collect()
    producer.revive(producer.connection)


def is_timeout(fault: BaseException) -> bool:
    """Return whether a fault is that of a broker that did not answer in time; transports raise errors of their own."""
    return any(isinstance(cause, TimeoutError) for cause in (fault, fault.__cause__, fault.__context__))
