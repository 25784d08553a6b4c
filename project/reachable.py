"""Say which of the servers given by their address cannot be reached: `python -m project.reachable URL...`."""

import sys

import psycopg
from kombu.connection import Connection
from kombu.exceptions import OperationalError

TIMEOUT = 3


def fault_of(url: str) -> str | None:
    """Return what stands in the way of a connection to a PostgreSQL server or a broker, or None."""
    try:
        if url.startswith("postgres"):
            # The database itself may be missing: the tests make one of their own.
            psycopg.connect(url, dbname="postgres", connect_timeout=TIMEOUT).close()
        else:
            Connection(url, connect_timeout=TIMEOUT).ensure_connection(max_retries=1).release()
    except (psycopg.OperationalError, OperationalError) as error:
        return f"{url}: {error}"
    return None


if __name__ == "__main__":
    faults = [fault for url in sys.argv[1:] if (fault := fault_of(url))]
    sys.exit("\n".join(["Cannot be reached:", *faults]) if faults else 0)
