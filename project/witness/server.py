"""The HTTP side of the witness: one thread for each connection, nothing else between socket and ledger."""

import json
import math
import select
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedReader
from threading import Lock
from typing import ClassVar

from project.witness.arrivals import Arrivals
from project.witness.ledger import SECOND, Ledger, Limits, Visit, Window

# By so much may a request set out later than its start allowed for (ns: 8 ms).
TOLERANCE = 8_000_000


class Witness(ThreadingHTTPServer):
    """Listen on a free port of 127.0.0.1 and keep one ledger for all connections."""

    daemon_threads = True
    # Every worker process connects at the same moment.
    request_queue_size = 128

    def __init__(self, limits: dict[str, Limits], *, tolerance: int = TOLERANCE) -> None:
        """Bind; `tolerance` in nanoseconds, for spacing alone."""
        super().__init__(("127.0.0.1", 0), Caller)
        self.limits = limits
        self.ledger = Ledger(limits, tolerance=tolerance)
        self.lock = Lock()
        # How often each call still fails before it may succeed.
        self.failures_left: dict[str, int] = {}

    @property
    def url(self) -> str:
        """Return the address at which the witness listens."""
        return f"http://127.0.0.1:{self.server_port}"


class Caller(BaseHTTPRequestHandler):
    """One connection: POST a request to be timed to any path; GET /limits and GET /record."""

    server: Witness
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    # Headers and body leave in one packet.
    wbufsize: ClassVar[int] = -1

    def setup(self) -> None:
        """Read the connection through what knows when its bytes arrived."""
        super().setup()
        self.rfile.close()
        self.arrivals = Arrivals(self.connection)
        self.rfile = BufferedReader(self.arrivals)

    def parse_request(self) -> bool:
        """Note the arrival before anything else: the request line has just been read."""
        self.arrived_at = self.arrivals.latest_at
        return super().parse_request()

    def do_GET(self) -> None:
        """Publish the limits, or the record."""
        if self.path == "/limits":
            self._answer(HTTPStatus.OK, {name: _published(limits) for name, limits in self.server.limits.items()})
        elif self.path == "/record":
            with self.server.lock:
                record = self.server.ledger.record()
            self._answer(HTTPStatus.OK, record)
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"error": f"nothing at {self.path}"})

    def do_POST(self) -> None:
        """Judge `{"keys": [...], "call": id, "seconds": s}`; hold a welcome request for so long, then answer.

        `"set_out"` says when it began its way, in monotonic nanoseconds. With `"failures": n` the
        first n welcome requests of a call get a 500, as from somebody in trouble. A request whose caller hangs up ends
        there and then, without success.
        """
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            with self.server.lock:
                visit = self.server.ledger.start(
                    keys=asked["keys"], call=asked["call"], at=self.arrived_at, set_out=asked.get("set_out")
                )
                failing = not visit.broken and self._fails(asked["call"], asked.get("failures", 0))
        except KeyError as error:
            return self._answer(HTTPStatus.BAD_REQUEST, {"error": f"no limits are published for {error}"})
        if visit.broken:
            self._end(visit, succeeded=False)
            return self._answer(
                HTTPStatus.TOO_MANY_REQUESTS, {"broken": visit.broken}, retry_after=self._patience(visit)
            )
        if self._hangs_up(asked["seconds"]):
            self.close_connection = True
            return self._end(visit, succeeded=False)
        self._end(visit, succeeded=not failing)
        status = HTTPStatus.INTERNAL_SERVER_ERROR if failing else HTTPStatus.OK
        return self._answer(status, {"call": asked["call"]})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that http.server passes
        """Stay silent: writing a line takes time, and the record says it all."""

    def _hangs_up(self, seconds: float) -> bool:
        """Hold the request for so long; return whether the caller closed the connection before that."""
        waiting, _, _ = select.select([self.connection], [], [], seconds)
        return bool(waiting)

    def _fails(self, call: str, failures: int) -> bool:
        """Return whether this call has failures left, and take one."""
        left = self.server.failures_left.get(call, failures)
        self.server.failures_left[call] = max(0, left - 1)
        return left > 0

    def _end(self, visit: Visit, *, succeeded: bool) -> None:
        """Book the end before the answer: a client that reads the response may send the next request at once."""
        with self.server.lock:
            self.server.ledger.end(visit, at=time.monotonic_ns(), succeeded=succeeded)

    def _patience(self, visit: Visit) -> int:
        """Return the whole seconds after which the keys that were broken surely have room again."""
        limits = [self.server.limits[key] for key in visit.broken]
        windows = [window for limit in limits for window in (limit.rate, limit.throttle) if window]
        return max([1, *(math.ceil(window.period / SECOND) for window in windows)])

    def _answer(self, status: HTTPStatus, body: Mapping[str, object], *, retry_after: int | None = None) -> None:
        """Send JSON; the connection stays open for the next request."""
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(payload)


def _published(limits: Limits) -> dict[str, object]:
    """Return a key's limits for GET /limits, periods in seconds."""
    return {
        "concurrency": limits.concurrency,
        "rate": _paced(limits.rate),
        "throttle": _paced(limits.throttle),
    }


def _paced(window: Window | None) -> dict[str, float] | None:
    """Return a window with its period in seconds."""
    return None if window is None else {"limit": window.limit, "period_s": window.period / SECOND}
