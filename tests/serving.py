"""A server of HTTP on this machine, which answers as a function of the test says."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a server was asked."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Reply = tuple[int, Mapping[str, str], bytes]
"""A status, headers and a body."""


@contextmanager
def serving(reply: Callable[[Request], Reply]) -> Iterator[str]:
    """Reply to requests by a function, each in a thread; give the address, without a slash at its end."""

    class Visit(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked = Request(method=self.command, path=self.path, headers=dict(self.headers), body=body)
            status, headers, text = reply(asked)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = answer  # noqa: N815 -- the names that http.server calls

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Visit) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
