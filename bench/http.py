"""What workers that fetch cost: jobs over HTTP from the push to the ack, and fetches that wait."""

import http.client
import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from threading import Event
from time import perf_counter, sleep
from typing import Any

from bench import database, fixtures
from bench.figures import Bench, Bound, Figure
from dispatcher.models import Queue
from project.processes import Stack, free_port, listening

HEARTBEATS = 30
CLIENTS = 8
PATIENCE_S = 60
"""How long a client waits for an answer."""
JOBS = 400
WAITERS = 200
ARRIVE_S = 12
"""Within how long 200 fetches come; each waits for 30 s."""
IDLE_S = 10
"""How long the CPU of a server is measured."""
CPU_BOUND = 20
"""The most that the CPU of a job may be, in looks at the database."""
FLOOR = 0.1
"""The least part of the requests that only look at the database."""
TYPE = "application/openjobspec+json"


def over_http(bench: Bench) -> Iterator[Figure]:
    """Push, fetch and ack over HTTP by 8 clients at once, and ask for the health, which is one look at the database."""
    jobs = bench.effort.calls(JOBS)
    fixtures.clear()
    with _server(bench) as server:
        steps = {"push": _push, "fetch": _fetch, "ack": _ack}
        fetched: list[str] = []
        seen: dict[str, list[float]] = {name: [] for name in ("push", "fetch", "ack", "health")}
        spent: dict[str, list[float]] = {"jobs": [], "health": []}
        for _ in range(bench.effort.rounds):
            before = server.cpu_ms()
            for name, step in steps.items():
                seen[name].append(_rate(server.port, partial(step, fetched), jobs))
            spent["jobs"].append((server.cpu_ms() - before) / jobs)
            before = server.cpu_ms()
            seen["health"].append(_rate(server.port, _health, jobs))
            spent["health"].append((server.cpu_ms() - before) / jobs)
            fetched.clear()
    yield Figure(
        name="CPU of server and database for a job over HTTP, against a look at the database",
        ours=median(spent["jobs"]),
        reference=median(spent["health"]),
        unit="ms",
        side=Bound.AT_MOST,
        bound=CPU_BOUND,
    )
    for name in steps:
        yield Figure(
            name=f"{name} over HTTP, {CLIENTS} clients, against a look at the database",
            ours=median(seen[name]),
            reference=median(seen["health"]),
            unit="requests/s",
            side=Bound.AT_LEAST,
            bound=FLOOR,
        )


def waiting(bench: Bench) -> Iterator[Figure]:
    """Let 200 fetches wait, and see what they hold and cost, and what another request takes meanwhile."""
    fixtures.clear()
    Queue.objects.all().delete()
    with _server(bench, workers=1, threads=WAITERS + CLIENTS, waiters=WAITERS) as server:
        _rate(server.port, _health, CLIENTS)
        idle = _idle(server)
        with ThreadPoolExecutor(WAITERS) as fetches:
            ends = []
            for _ in range(WAITERS):
                ends.append(fetches.submit(_empty_fetch, server.port))
                sleep(ARRIVE_S / WAITERS)
            busy = _idle(server)
            for end in ends:
                end.result()
    yield Figure(
        name=f"connections to the database with {WAITERS} fetches waiting against none",
        ours=busy.connections,
        reference=idle.connections,
        unit="connections",
        side=Bound.AT_MOST,
        bound=1.0,
        floor=1.0,
    )
    yield Figure(
        name=f"CPU of server and database per second with {WAITERS} fetches waiting against none",
        ours=busy.cpu_ms,
        reference=idle.cpu_ms,
        unit="ms",
        side=Bound.AT_MOST,
        bound=1.0,
        floor=100.0,
    )
    yield Figure(
        name=f"a heartbeat with {WAITERS} fetches waiting against none",
        ours=busy.heartbeat_ms,
        reference=idle.heartbeat_ms,
        unit="ms",
        side=Bound.AT_MOST,
        bound=1.5,
        floor=5.0,
    )


@dataclass(frozen=True, kw_only=True)
class _Idle:
    """A server that has little to do: its connections, its CPU per second, and how long a heartbeat takes."""

    connections: float
    cpu_ms: float
    heartbeat_ms: float


def _idle(server: "_Server") -> _Idle:
    before, began = server.cpu_ms(), perf_counter()
    sleep(IDLE_S)
    spent = (server.cpu_ms() - before) / (perf_counter() - began)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    times = []
    for _ in range(HEARTBEATS):
        began = perf_counter()
        _ask(connection, "POST", "/workers/heartbeat", {"worker_id": "one"})
        times.append((perf_counter() - began) * 1_000)
    ((connections,),) = database.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
    connection.close()
    return _Idle(connections=connections, cpu_ms=spent, heartbeat_ms=median(times))


def _empty_fetch(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    _ask(connection, "POST", "/workers/fetch", {"queues": ["pulled"], "wait_ms": 30_000})
    connection.close()


@dataclass(frozen=True, kw_only=True)
class _Server:
    """A web server: its port, and the process that leads its group."""

    port: int
    leader: int

    def cpu_ms(self) -> float:
        """Return what its processes have spent so far, and those of a database on the same machine."""
        known = {process.pid: process for path in Path("/proc").glob("[0-9]*/stat") if (process := _process(path))}
        ((backend,),) = database.execute("SELECT pg_backend_pid()")
        postmaster = known[backend].parent if backend in known else 0
        ticks = sum(each.spent for each in known.values() if self.leader == each.group or postmaster == each.parent)
        return (ticks + known[postmaster].spent_by_ended) * 1_000 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class _Process:
    """A process of this machine, and how many ticks of the clock it has spent, and its children that have ended."""

    pid: int
    parent: int
    group: int
    spent: int
    spent_by_ended: int


def _process(path: Path) -> _Process | None:
    """Read a process; None if it has ended (see proc_pid_stat(5))."""
    with suppress(OSError):
        pid, _, more = path.read_text().partition(" ")
        state = more.rpartition(")")[2].split()
        parent, group, user, system, ended_user, ended_system = (int(state[place]) for place in (1, 2, 11, 12, 13, 14))
        spent, by_ended = user + system, ended_user + ended_system
        return _Process(pid=int(pid), parent=parent, group=group, spent=spent, spent_by_ended=by_ended)
    return None


@contextmanager
def _server(bench: Bench, *, workers: int = 2, threads: int = CLIENTS, waiters: int = CLIENTS) -> Iterator[_Server]:
    """Have a production server up."""
    port = free_port()
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.conformance.settings", "HTTP_WAITERS": str(waiters)}
    command = [sys.executable, "-m", "gunicorn", "project.conformance.wsgi", "--bind", f"127.0.0.1:{port}"]
    with Stack(bench.run_dir, env=env) as stack:
        options = ["--workers", str(workers), "--threads", str(threads), "--no-control-socket"]
        web = stack.start("web", [*command, *options], ready=listening(port))
        stack.wait_ready()
        yield _Server(port=port, leader=web.pid)


def _rate(port: int, step: Callable[[http.client.HTTPConnection], None], jobs: int) -> float:
    """Return how many requests per second the clients get done together."""
    share = jobs // CLIENTS

    is_over = Event()

    def go(_: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        for _ in range(share):
            if is_over.is_set():
                break
            step(connection)
        connection.close()

    began = perf_counter()
    with ThreadPoolExecutor(CLIENTS) as clients:
        try:
            list(clients.map(go, range(CLIENTS)))
        finally:
            # A figure that is given up leaves no thread behind that goes on.
            is_over.set()
    return share * CLIENTS / (perf_counter() - began)


def _ask(connection: http.client.HTTPConnection, method: str, path: str, body: object = None) -> Any:
    sent = None if body is None else json.dumps(body)
    connection.request(method, f"/ojs/v1{path}", sent, {"Content-Type": TYPE})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status not in (200, 201):
        message = f"{method} {path}: {answer.status} {content[:200]!r}"
        raise AssertionError(message)
    return json.loads(content)


def _push(fetched: list[str], connection: http.client.HTTPConnection) -> None:
    del fetched
    _ask(connection, "POST", "/jobs", {"type": "bench.noop", "args": [1], "options": {"queue": "pulled"}})


def _fetch(fetched: list[str], connection: http.client.HTTPConnection) -> None:
    reply = _ask(connection, "POST", "/workers/fetch", {"queues": ["pulled"], "wait_ms": 5_000})
    fetched.extend(job["id"] for job in reply["jobs"])


def _ack(fetched: list[str], connection: http.client.HTTPConnection) -> None:
    _ask(connection, "POST", "/workers/ack", {"job_id": fetched.pop()})


def _health(connection: http.client.HTTPConnection) -> None:
    _ask(connection, "GET", "/health")
