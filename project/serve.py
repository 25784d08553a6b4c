"""Serve the project over HTTP until SIGTERM: `python -m project.serve --listen 127.0.0.1:8000 --threads 4`.

The main thread (waitress) reads heads and bodies, however slowly they arrive, and writes answers, however slowly they
are read; a thread has a request from its last byte until its answer is made. So a thread, and the database connection
that belongs to it, cannot be held by a client. docs/decisions/0029-a-server-that-reads-requests.md compares servers.
"""

import argparse
import logging
import resource
import signal
from threading import Event
from time import monotonic
from typing import Any

from django.conf import settings
from waitress import create_server, wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser

from project.wsgi import application

CONNECTIONS = 1000
"""The most at once; more wait in the backlog of the socket."""
SILENCE_S = 30
"""How long a connection may be silent while the server waits for it."""
GRACE_S = 40
"""How long requests that have arrived may run after SIGTERM: longer than one may wait for a job (30 s)."""


class Parser(HTTPRequestParser):
    """Reads one request at a time: one that comes before the last answer is not read, and the connection closes.

    A client repeats it (RFC 9112, 9.3.2). Waitress reads all that arrive together, and a thread that has made 16 MB of
    answers waits for the client to read them.
    """

    def received(self, data: bytes) -> int:
        """Return how many bytes were read or left out."""
        count: int = super().received(data)
        if not self.completed or count == len(data):
            return count
        self.headers["CONNECTION"] = "close"
        return len(data)


class Channel(HTTPChannel):
    """A connection."""

    parser_class = Parser


def main() -> None:
    """Serve until SIGTERM or Ctrl-C, then answer what has arrived."""
    given = argument_parser().parse_args()
    allow_connections()
    # It warns of each request that finds all threads busy.
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)
    sockets: dict[int, Any] = {}
    server = create_server(
        application,
        map=sockets,
        listen=given.listen,
        threads=given.threads,
        connection_limit=CONNECTIONS,
        channel_timeout=SILENCE_S,
        cleanup_interval=SILENCE_S // 3,
        # Django refuses larger ones, in words of its own if they are not far above.
        max_request_body_size=2 * (settings.DATA_UPLOAD_MAX_MEMORY_SIZE or 2**30),
        inbuf_overflow=64 * 1024,
        # Django's settings say which headers of a proxy are believed.
        clear_untrusted_proxy_headers=False,
        log_socket_errors=False,
    )
    server.channel_class = Channel
    stop = Event()

    def ask_to_stop(*_: object) -> None:
        stop.set()
        server.pull_trigger()

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, ask_to_stop)
    print(f"Listening on http://{given.listen}", flush=True)
    while not stop.is_set():
        wasyncore.loop(timeout=1.0, use_poll=True, map=sockets, count=1)
    drain(server, sockets)


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m project.serve", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1:8000", metavar="HOST:PORT")
    parser.add_argument("--threads", type=int, default=4, help="requests that are served at once")
    return parser


def allow_connections() -> None:
    """Let the process have a file for each connection, and one for each body, if the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 3 * CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def drain(server: Any, sockets: dict[int, Any]) -> None:
    """Take no more connections, and close each one when the requests that have arrived by it are answered."""
    wasyncore.dispatcher.close(server)
    until = monotonic() + GRACE_S
    while server.active_channels and monotonic() < until:
        for channel in server.active_channels.values():
            channel.close_when_flushed |= not channel.requests
        wasyncore.loop(timeout=0.1, use_poll=True, map=sockets, count=1)


if __name__ == "__main__":
    main()
