"""What workers that fetch cost: jobs over HTTP from the push to the ack."""

import http.client
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from statistics import median
from threading import Event
from time import perf_counter
from typing import Any

from bench import database, fixtures
from bench.figures import Bench, Figure, ensure
from bench.limits import apart
from dispatcher import api
from dispatcher.models import RateLimitKey
from project.processes import Stack, free_port

CLIENTS = 8
PATIENCE_S = 60
"""How long a client waits for an answer."""
JOBS = 400
CPU_BOUND = 20
"""The most that the CPU of a job may be, in looks at the database."""
LIMITS = (("throttle", 10, 1), ("throttle", 100, 1), ("rate", 40, 4))
"""The kind, the limit, and the seconds of its period."""
WAITERS = 2
"""The clients that wait for it."""
WINDOWS = 4
USED = 0.95
FLOOR = 0.1
"""The least part of the requests that only look at the database."""
TYPE = "application/openjobspec+json"


def over_http(bench: Bench) -> Iterator[Figure]:
    """Push, fetch and ack over HTTP by 8 clients at once, and ask for the health, which is one look at the database."""
    jobs = bench.effort.calls(JOBS)
    fixtures.clear()
    port = free_port()
    with _server(bench, port) as server:
        steps = {"push": _push, "fetch": _fetch, "ack": _ack}
        fetched: list[str] = []
        seen: dict[str, list[float]] = {name: [] for name in ("push", "fetch", "ack", "health")}
        spent: dict[str, list[float]] = {"jobs": [], "health": []}
        for _ in range(bench.effort.rounds):
            before = _cpu_ms(server)
            for name, step in steps.items():
                seen[name].append(_rate(port, partial(step, fetched), jobs))
            spent["jobs"].append((_cpu_ms(server) - before) / jobs)
            before = _cpu_ms(server)
            seen["health"].append(_rate(port, _health, jobs))
            spent["health"].append((_cpu_ms(server) - before) / jobs)
            fetched.clear()
    name = "CPU of server and database for a job over HTTP, against a look at the database"
    yield Figure.time(name, median(spent["jobs"]), median(spent["health"]), CPU_BOUND)
    for name in steps:
        what = f"{name} over HTTP, {CLIENTS} clients, against a look at the database"
        yield Figure.rate(what, median(seen[name]), median(seen["health"]), FLOOR, unit="requests/s")


def limits_over_http(bench: Bench) -> Iterator[Figure]:
    """Fetch and ack by workers that wait in each fetch, under a standing backlog: how much of a limit they use."""
    windows = max(1, bench.effort.calls(WINDOWS))
    fixtures.clear()
    port = free_port()
    with _server(bench, port):
        for kind, limit, seconds in LIMITS:
            key = f"{kind}.{limit}"
            RateLimitKey.objects.declare(key)
            api.limit(key, {kind: {"limit": limit, "period": seconds}})
            jobs = limit * (windows + 1)
            _rate(port, partial(_push, [], keys=[key]), jobs, clients=WAITERS)
            seen: list[float] = []
            _rate(port, partial(_visit, seen), jobs, clients=WAITERS)
            name = f"fetches under a {kind} of {limit} in {seconds} s, {WAITERS} clients that wait"
            yield Figure.rate(name, limit / apart(sorted(seen), limit), limit / seconds, USED, unit="starts/s")


def _cpu_ms(stack: Stack) -> float:
    """Return the milliseconds of CPU that the server has used so far, and the sessions of the database."""
    return database.family_cpu_ms(stack.children["web"].pid) + sum(map(database.cpu_ms, database.sessions()))


@contextmanager
def _server(bench: Bench, port: int) -> Iterator[Stack]:
    """Have a production server up."""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.conformance.settings", "HTTP_WAITERS": str(CLIENTS)}
    with Stack(bench.run_dir, env=env) as stack:
        stack.start_web(port, threads=2 * CLIENTS)
        stack.wait_ready()
        # Each thread has its connection then.
        _rate(port, _health, 10 * CLIENTS)
        yield stack


def _rate(port: int, step: Callable[[http.client.HTTPConnection], None], jobs: int, *, clients: int = CLIENTS) -> float:
    """Return how many requests per second the clients get done together."""
    share = jobs // clients
    is_over = Event()

    def go(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        for _ in range(share):
            if is_over.is_set():
                return
            step(connection)
        connection.close()

    began = perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        try:
            list(threads.map(go, range(clients)))
        finally:
            # A figure that is given up leaves no thread behind that goes on.
            is_over.set()
    return share * clients / (perf_counter() - began)


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> Any:
    sent = None if body is None else json.dumps(body)
    connection.request(method, f"/ojs/v1{path}", sent, {"Content-Type": TYPE})
    answer = connection.getresponse()
    content = answer.read()
    ensure(answer.status in (200, 201), (method, path, answer.status, content[:200]))
    return json.loads(content)


def _push(fetched: list[str], connection: http.client.HTTPConnection, keys: Sequence[str] = ()) -> None:
    del fetched
    options = {"queue": "pulled", "keys": [*keys]}
    _ask(connection, "POST", "/jobs", {"type": "bench.noop", "args": [1], "options": options})


def _fetch(fetched: list[str], connection: http.client.HTTPConnection) -> None:
    reply = _ask(connection, "POST", "/workers/fetch", {"queues": ["pulled"], "wait_ms": 5_000})
    fetched.extend(job["id"] for job in reply["jobs"])


def _ack(fetched: list[str], connection: http.client.HTTPConnection) -> None:
    _ask(connection, "POST", "/workers/ack", {"job_id": fetched.pop()})


def _visit(seen: list[float], connection: http.client.HTTPConnection) -> None:
    """Fetch a job, wait for it as often as it takes, and ack it; note when the worker had it."""
    fetched: list[str] = []
    while not fetched:
        _fetch(fetched, connection)
    seen.append(perf_counter())
    _ack(fetched, connection)


def _health(connection: http.client.HTTPConnection) -> None:
    _ask(connection, "GET", "/health")
