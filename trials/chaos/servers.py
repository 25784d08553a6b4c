"""The database and the broker of a run: reached by way of proxies, and emptied, cut or stopped as the schedule says."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import redis

from project.services import Services, end_sessions, own_database
from trials.chaos.plan import Needs
from trials.chaos.proxy import Proxy


@dataclass(frozen=True, kw_only=True)
class Servers:
    """What the processes of a run talk to; `..._url` leads straight to it, they get the addresses of the proxies."""

    services: Services
    run: str
    database_url: str
    database: Proxy
    broker: Proxy

    @property
    def can_stop(self) -> Needs:
        """Return which servers are ours to stop, and whether there are messages."""
        database = Needs.DATABASE if self.services.owns_database else Needs.NOTHING
        broker = Needs.BROKER if self.services.owns_broker else Needs.NOTHING
        return database | broker | (Needs.MESSAGES if self.has_messages else Needs.NOTHING)

    @property
    def has_messages(self) -> bool:
        """Return whether there is a broker, and not only the memory of each process."""
        return not self.services.broker_url.startswith("memory")

    @property
    def env(self) -> dict[str, str]:
        """Return the environment of the run's processes."""
        return {"DATABASE_URL": self.database.url, "CELERY_BROKER_URL": self.broker.url, "CHAOS_RUN": self.run}

    def connect(self) -> psycopg.Connection[Any]:
        """Connect to the database, by no proxy."""
        return psycopg.connect(self.database_url, autocommit=True, connect_timeout=5)

    def disconnect_all(self) -> None:
        """End every connection to the run's database, as a fast restart does."""
        with self.connect() as connection:
            end_sessions(connection, connection.info.dbname)

    def lose_messages(self) -> None:
        """Empty the broker: all of it if it is embedded, else the queues of this run."""
        if self.services.owns_broker:
            self._redis().flushall()
        elif self._is_redis:
            self._redis().delete(*(f"{self.run}:{queue}" for queue in self._queues()))
        else:
            self._for_each_queue("queue_purge")

    def clear(self) -> None:
        """Leave nothing of this run in a broker that is not ours."""
        if self.services.owns_broker or not self.has_messages:
            return
        if self._is_redis:
            client = self._redis()
            for key in list(client.scan_iter(match=f"{self.run}:*")):
                client.delete(key)
        else:
            self._for_each_queue("queue_delete")

    @property
    def _is_redis(self) -> bool:
        return self.services.broker_url.startswith("redis")

    def _redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.services.broker_url)

    def _for_each_queue(self, what: str) -> None:
        from project.celery import app  # noqa: PLC0415 - its settings need the run's environment

        with app.connection_for_write(self.services.broker_url) as broker:
            for queue in self._queues():
                getattr(broker.default_channel, what)(queue)

    def _queues(self) -> Iterable[str]:
        return (f"{self.run}-{queue}" for queue in ("main", "side", "dispenser"))


@contextmanager
def servers(services: Services, *, run: str) -> Iterator[Servers]:
    """Have a database of the run's own beside the one that is given, and the proxies."""
    with own_database(services.database_url, "chaos") as own:
        database, broker = Proxy(own), Proxy(services.broker_url)
        try:
            yield Servers(services=services, run=run, database_url=own, database=database, broker=broker)
        finally:
            database.close()
            broker.close()
