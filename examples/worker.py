"""A worker of the Open Job Spec in Python's standard library: it fetches, works, reports, and says that it lives.

OJS_URL=http://127.0.0.1:8000 OJS_TOKEN=... python examples/worker.py mail invoices

Put your own handlers into HANDLERS, by the type of job. Ctrl-C or SIGTERM ends it when its job is done.
"""

import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

URL = os.environ.get("OJS_URL", "http://127.0.0.1:8000").rstrip("/") + "/ojs/v1/workers"
HEADERS = {"Content-Type": "application/openjobspec+json", "Authorization": f"Bearer {os.environ.get('OJS_TOKEN', '')}"}
NAME = f"{socket.gethostname()}-{os.getpid()}"
HEARTBEAT_S = 5.0
WAIT_MS = 10_000
REFUSED_S = 1.0
"""How long it asks no more after the server refused, or was away."""
NOT_ALLOWED = (401, 403)
"""A wrong token, or one for other queues: asking again does not help."""


def visit(url: str, seconds: float = 0.1) -> dict[str, Any]:
    """Ask a third party for something that takes a while, as an example."""
    with urllib.request.urlopen(f"{url}?seconds={seconds}", timeout=30) as answer:
        return {"status": answer.status}


HANDLERS: dict[str, Callable[..., Any]] = {"example.visit": visit, "example.echo": lambda *args: list(args)}


def post(path: str, body: dict[str, Any], timeout: float = 30.0) -> Any:
    """Send a request and return the answer. Raises HTTPError if the server refuses it, OSError if it is away."""
    request = urllib.request.Request(f"{URL}/{path}", json.dumps(body).encode(), HEADERS)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return json.load(answer)


class Worker:
    """One job at a time; a thread beside it keeps the lease alive, and gets the worker's directive."""

    def __init__(self, queues: list[str]) -> None:
        """Take the queues, the most important first."""
        self.queues, self.state = queues, "running"
        self.job: str | None = None

    def run(self) -> None:
        """Fetch and work until somebody says that it is enough."""
        threading.Thread(target=self.beat, daemon=True).start()
        while self.state == "running":
            try:
                asked = {"queues": self.queues, "worker_id": NAME, "wait_ms": WAIT_MS}
                for job in post("fetch", asked, WAIT_MS / 1000 + 20)["jobs"]:
                    self.work(job)
            except urllib.error.HTTPError as refused:
                said = f"the server refused: {refused.code} {refused.read().decode()}"
                if refused.code in NOT_ALLOWED:
                    sys.exit(said)
                print(said, file=sys.stderr, flush=True)
                time.sleep(REFUSED_S)
            except OSError as away:
                print(f"the server is away: {away}", file=sys.stderr, flush=True)
                time.sleep(REFUSED_S)

    def work(self, job: dict[str, Any]) -> None:
        """Do one job, and report how it ended."""
        self.job = job["id"]
        report: dict[str, Any] = {"job_id": job["id"], "ticket": job["ticket"], "worker_id": NAME}
        handler = HANDLERS.get(job["type"])
        try:
            if handler is None:
                report["error"] = {
                    "code": "no_handler",
                    "type": "NoHandler",
                    "message": f"no handler for {job['type']}",
                }
            else:
                report["result"] = handler(*job["args"])
        except Exception as error:  # noqa: BLE001 -- whatever a handler raises is to be reported
            report["error"] = {"code": "handler_error", "type": type(error).__name__, "message": str(error)}
        try:
            post("nack" if "error" in report else "ack", report)
        finally:
            self.job = None

    def beat(self) -> None:
        """Send a heartbeat every few seconds, and follow its directive."""
        while True:
            time.sleep(HEARTBEAT_S)
            try:
                reply = post("heartbeat", {"worker_id": NAME, "active_jobs": [self.job] if self.job else []})
            except OSError:
                continue
            self.state = reply["state"] if self.state == "running" else self.state

    def stop(self, *_: object) -> None:
        """End when the job is done."""
        self.state = "terminate"


if __name__ == "__main__":
    worker = Worker(sys.argv[1:] or ["default"])
    signal.signal(signal.SIGTERM, worker.stop)
    signal.signal(signal.SIGINT, worker.stop)
    worker.run()
