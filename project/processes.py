"""Child processes of the demo and of `make run`: start them, wait until they are ready, stop them all."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

import psutil

from project.run_dirs import ROOT

RUN_DIR_MARK = "PROJECT_RUN_DIR"
CELERY = (sys.executable, "-m", "celery", "-A")
POLL = 0.05
STOP_GRACE = 10.0
ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)

Readiness = Callable[["Child"], bool]


class ChildFailed(RuntimeError):
    """Raised when a child ended, or did not become ready in time: see `log` for what it said."""

    def __init__(self, child: "Child", what: str) -> None:
        self.name = child.name
        self.log = child.log
        tail = "\n".join(f"    {line}" for line in child.output().splitlines()[-20:])
        super().__init__(f"{child.name} {what}; the end of {child.log}:\n{tail}")


@dataclass(kw_only=True)
class Child:
    """One process with its log, in a session of its own, so that Ctrl-C reaches only the parent."""

    name: str
    log: Path
    popen: "subprocess.Popen[bytes]"
    log_offset: int = 0
    is_ready: Readiness | None = None
    stop_signal: signal.Signals = signal.SIGTERM

    @property
    def pid(self) -> int:
        """Return the process id, which is also the id of its process group."""
        return self.popen.pid

    def is_running(self) -> bool:
        """Return whether the process is still running."""
        return self.popen.poll() is None

    def output(self) -> str:
        """Return what the process has written since it was started."""
        with self.log.open("rb") as log:
            log.seek(self.log_offset)
            return log.read().decode(errors="replace")

    def ensure_running(self) -> None:
        """Raise ChildFailed if the process has ended."""
        if not self.is_running():
            raise ChildFailed(self, f"ended with exit code {self.popen.returncode}")

    def wait_ready(self, deadline: float) -> None:
        """Wait until the process is ready; raise ChildFailed if it ends or `deadline` (monotonic) passes."""
        while self.is_ready is not None and not self.is_ready(self):
            self.ensure_running()
            if time.monotonic() > deadline:
                raise ChildFailed(self, "did not become ready in time")
            time.sleep(POLL)

    def ask_to_stop(self) -> None:
        """Send the stop signal: a Celery worker finishes the tasks it runs, the others end at once."""
        self.popen.send_signal(self.stop_signal)

    def kill(self) -> None:
        """Kill the process and everything left of its group, at once."""
        # The group outlives its leader when a Celery worker dies and leaves its pool behind.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait()

    def stop(self, *, grace: float = STOP_GRACE) -> None:
        """Ask the process to stop, wait up to `grace` seconds, then kill what is left."""
        self.ask_to_stop()
        self.end_by(time.monotonic() + grace)

    def end_by(self, deadline: float) -> None:
        """Wait until the process that was asked to stop has ended; at `deadline` (monotonic) kill it."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(timeout=max(0.0, deadline - time.monotonic()))
        self.kill()


def logged(pattern: str) -> Readiness:
    """Return a readiness test: the log contains the regular expression `pattern`."""
    return lambda child: re.search(pattern, child.output(), re.MULTILINE) is not None


def listening(port: int, host: str = "127.0.0.1") -> Readiness:
    """Return a readiness test: something accepts connections on the port."""

    def is_listening(_: Child) -> bool:
        with suppress(OSError), socket.create_connection((host, port), timeout=1.0):
            return True
        return False

    return is_listening


def spawn(
    name: str,
    command: Sequence[str],
    *,
    run_dir: Path,
    env: Mapping[str, str] | None = None,
    ready: Readiness | None = None,
    user: str | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
    cwd: Path = ROOT,
) -> Child:
    """Start one process in `cwd` whose output goes to `run_dir`/logs/`name`.log; do not wait for it.

    Only root may give a `user` to run it as.
    """
    log = run_dir / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        log_offset = output.seek(0, os.SEEK_END)
        popen = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {}), RUN_DIR_MARK: str(run_dir)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=user,
        )
    return Child(name=name, log=log, popen=popen, log_offset=log_offset, is_ready=ready, stop_signal=stop_signal)


def reap(run_dir: Path) -> int:
    """Kill every process that an earlier owner of `run_dir` left behind (it was killed itself); return how many.

    Such processes are known by the variable that `spawn` puts into their environment and that their
    own children inherit. Call it only while holding the lock on `run_dir`.
    """
    left_behind = [process for process in psutil.process_iter() if _run_dir_of(process) == str(run_dir)]
    for process in left_behind:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_gone(left_behind)
    return len(left_behind)


def wait_gone(ending: Iterable[psutil.Process], *, timeout: float = STOP_GRACE) -> None:
    """Wait until the processes have ended, or `timeout` seconds have passed."""
    deadline = time.monotonic() + timeout
    for process in ending:
        while _is_alive(process) and time.monotonic() < deadline:
            time.sleep(POLL)


def _is_alive(process: psutil.Process) -> bool:
    # An orphan stays a zombie for as long as the machine's first process does not collect it.
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def _run_dir_of(process: psutil.Process) -> str | None:
    with suppress(psutil.Error, OSError):
        run_dir: str | None = process.environ().get(RUN_DIR_MARK)
        return run_dir if process.pid != os.getpid() else None
    return None


class Stack:
    """The processes of one run: a context that stops all of them on the way out, whatever happens.

    >>> with embedded() as services, Stack(services.run_dir) as stack:
    ...     stack.start_worker()
    ...     stack.start("other", [sys.executable, "-m", "other"], ready=logged("listening"))
    ...     stack.wait_ready()
    """

    def __init__(self, run_dir: Path, *, env: Mapping[str, str] | None = None) -> None:
        """Keep logs under `run_dir`/logs and add `env` to the environment of every child."""
        self.run_dir = run_dir
        self.env = dict(env or {})
        self.children: dict[str, Child] = {}

    def __enter__(self) -> Self:
        """Forget the logs of earlier runs, except those of servers that are already up."""
        for log in (self.run_dir / "logs").glob("*.log"):
            if log.stem not in {"postgres", "valkey", "pgbouncer"}:
                log.unlink()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop every child."""
        self.stop_all()

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        ready: Readiness | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
    ) -> Child:
        """Start a process under a name (free to use again after `stop`); `wait_ready` waits for it."""
        child = spawn(name, command, run_dir=self.run_dir, env={**self.env, **(env or {})}, ready=ready, cwd=cwd)
        self.children[name] = child
        return child

    def start_worker(
        self,
        name: str = "worker",
        *options: str,
        app: str = "project",
        node: str = "",
        queues: Sequence[str] = ("celery",),
        concurrency: int = 2,
        env: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a Celery worker that runs the tasks of these queues. node: what it is called at the broker."""
        known_as = ["-n", f"{node or name}@%h", "-Q", ",".join(queues), "-c", str(concurrency), "-l", "INFO"]
        return self.start(name, [*CELERY, app, "worker", *known_as, *options], ready=logged(r" ready\.$"), env=env)

    def start_dispenser(self, name: str = "dispenser", *, env: Mapping[str, str] | None = None) -> Child:
        """Start the small worker that runs the dispatcher's own periodic tasks, and nothing else."""
        return self.start_worker(name, "-P", "threads", queues=["dispatcher"], concurrency=4, env=env)

    def start_beat(
        self, name: str = "beat", *options: str, app: str = "project", env: Mapping[str, str] | None = None
    ) -> Child:
        """Start Celery beat with the schedule that is kept in the database."""
        command = [*CELERY, app, "beat", "-l", "INFO", "--pidfile=", *options]
        return self.start(name, command, ready=logged(r"beat: Starting"), env=env)

    def start_web(self, port: int, *, threads: int = 4, env: Mapping[str, str] | None = None) -> Child:
        """Start the web server under the name `web` on 127.0.0.1."""
        options = ["--listen", f"127.0.0.1:{port}", "--threads", str(threads)]
        return self.start("web", [sys.executable, "-m", "project.serve", *options], ready=listening(port), env=env)

    def wait_ready(self, *, timeout: float = 60.0) -> None:
        """Wait until every started child is ready; raise ChildFailed if one ends or `timeout` (s) passes."""
        deadline = time.monotonic() + timeout
        for child in self.children.values():
            child.wait_ready(deadline)

    def ensure_running(self) -> None:
        """Raise ChildFailed if any child has ended by itself."""
        for child in self.children.values():
            child.ensure_running()

    def stop(self, name: str, *, grace: float = STOP_GRACE) -> None:
        """Stop one child and forget it."""
        self.children.pop(name).stop(grace=grace)

    def kill(self, name: str) -> None:
        """Kill one child with its whole group, as a crash would, and forget it."""
        self.children.pop(name).kill()

    def stop_all(self, *, grace: float = STOP_GRACE) -> None:
        """Stop every child, all at once, within `grace` seconds; kill those that are still there then."""
        with undisturbed():
            children, self.children = self.children, {}
            for child in children.values():
                child.ask_to_stop()
            deadline = time.monotonic() + grace
            for child in children.values():
                child.end_by(deadline)


@contextmanager
def ending_cleanly() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as Ctrl-C while inside, so that contexts and `finally` blocks run."""
    with _handling(signal.default_int_handler, only_default=True):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore Ctrl-C, SIGTERM and SIGHUP while inside: a second one must not interrupt the cleaning up."""
    with _handling(signal.SIG_IGN, signals=(signal.SIGINT, *ENDING_SIGNALS)):
        yield


@contextmanager
def _handling(
    handler: Callable[[int, FrameType | None], object] | signal.Handlers,
    *,
    signals: Sequence[signal.Signals] = ENDING_SIGNALS,
    only_default: bool = False,
) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in signals}
    if only_default:
        before = {number: old for number, old in before.items() if old is signal.SIG_DFL}
    for number in before:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
