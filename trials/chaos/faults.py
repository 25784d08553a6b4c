"""How each fault of the plan strikes."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partialmethod
from operator import attrgetter
from pathlib import Path
from random import Random
from subprocess import TimeoutExpired
from typing import Any

import psutil
import psycopg

from dispatcher.messages.tickets import TICKET_HEADER
from project.celery import app
from project.services import Server, snapshot
from trials import notes
from trials.chaos import fault_points
from trials.chaos.plan import Fault
from trials.chaos.servers import Servers
from trials.chaos.supervisor import Supervisor
from trials.chaos.verdict import Struck

TRAP_PATIENCE = 4.0
"""Seconds for which a fault_point waits for somebody to step into it; then the signal is sent from outside."""
SHUTDOWN_PATIENCE = 20.0
REPEATED = 15
"""How many of the latest messages are delivered again, and how many of all."""
LOOK_EVERY = 0.01


@dataclass(kw_only=True)
class Faults:
    """Strikes the processes and servers of a run; each `_<kind>` returns the moment from which service is expected."""

    supervisor: Supervisor
    servers: Servers
    notes: Path
    remarks: list[str] = field(default_factory=list)

    def strike(self, fault: Fault) -> Struck:
        """Let a fault happen, to its end."""
        began = time.monotonic()
        over: float = getattr(self, f"_{fault.kind}")(fault)
        return Struck(fault=fault, began=began, over=over)

    # What they are made of

    def _signal(self, how: signal.Signals, fault: Fault) -> float:
        with suppress(ProcessLookupError):
            os.killpg(self.supervisor.child(fault.target).pid, how)
        return time.monotonic()

    def _trap(self, point: str, how: signal.Signals, fault: Fault, *, alone: bool = False) -> float:
        fault_point = fault_points.path(self.notes, fault.target, point)
        fault_points.arm(fault_point, how, alone=alone)
        deadline = time.monotonic() + TRAP_PATIENCE
        while fault_point.exists() and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
        if fault_points.disarm(fault_point):
            self.remarks.append(f"no process reached the fault_point of fault {fault.number}: struck from outside")
            return self._child_killed(fault) if alone else self._signal(how, fault)
        return time.monotonic()

    def _main(self, fault: Fault) -> psutil.Process:
        return psutil.Process(self.supervisor.child(fault.target).pid)

    def _child(self, fault: Fault) -> psutil.Process:
        """Return any child of a worker; the main process if it has none."""
        main = self._main(fault)
        return Random(fault.number).choice(main.children() or [main])  # noqa: S311 - any of them will do

    def _kill(self, process_of: Callable[["Faults", Fault], psutil.Process], fault: Fault) -> float:
        with suppress(psutil.NoSuchProcess):
            process_of(self, fault).kill()
        return time.monotonic()

    def _freeze(self, process_of: Callable[["Faults", Fault], psutil.Process], fault: Fault) -> float:
        with suppress(psutil.NoSuchProcess):
            process = process_of(self, fault)
            process.suspend()
            time.sleep(fault.seconds)
            process.resume()
        return time.monotonic()

    def _thaw(self, fault: Fault) -> float:
        time.sleep(fault.seconds)
        return self._signal(signal.SIGCONT, fault)

    def _shut_down(self, how: signal.Signals, fault: Fault) -> float:
        child = self.supervisor.child(fault.target)
        child.popen.send_signal(how)
        asked_at = time.monotonic()
        try:
            child.popen.wait(SHUTDOWN_PATIENCE)
        except TimeoutExpired:
            self.remarks.append(f"{fault.target} did not end {SHUTDOWN_PATIENCE:g} s after {how.name}, and was killed")
            child.kill()
        return asked_at

    def _serve(self, begin: str, end: str, fault: Fault) -> float:
        """Have a proxy begin and end something by these methods."""
        attrgetter(begin)(self.servers)()
        time.sleep(fault.seconds)
        attrgetter(end)(self.servers)()
        return time.monotonic()

    def _restart(self, which: str, how: signal.Signals, fault: Fault) -> float:
        server: Server = getattr(self.servers.services, which)
        server.end(how)
        time.sleep(fault.seconds)
        server.start()
        return time.monotonic()

    # Processes of all kinds

    _worker_killed = _dispenser_killed = _sender_killed = _beat_killed = partialmethod(_signal, signal.SIGKILL)
    _worker_killed_at_start = partialmethod(_trap, fault_points.RUNNING, signal.SIGKILL)
    _dispenser_killed_publishing = _sender_killed_publishing = partialmethod(
        _trap, fault_points.PUBLISHING, signal.SIGKILL
    )
    _sender_killed_waking = partialmethod(_trap, fault_points.WAKING, signal.SIGKILL)

    # Workers

    _child_killed = partialmethod(_kill, _child)
    _child_killed_as_notified = partialmethod(_trap, fault_points.NOTIFIED, signal.SIGKILL, alone=True)
    _child_killed_at_start = partialmethod(_trap, fault_points.RUNNING, signal.SIGKILL, alone=True)
    _child_killed_at_end = partialmethod(_trap, fault_points.ENDED, signal.SIGKILL, alone=True)
    _main_killed = partialmethod(_kill, _main)
    _child_frozen, _main_frozen = partialmethod(_freeze, _child), partialmethod(_freeze, _main)
    _worker_warm_shutdown = partialmethod(_shut_down, signal.SIGTERM)
    _worker_cold_shutdown = partialmethod(_shut_down, signal.SIGQUIT)

    def _worker_frozen(self, fault: Fault) -> float:
        self._signal(signal.SIGSTOP, fault)
        return self._thaw(fault)

    def _worker_frozen_at_start(self, fault: Fault) -> float:
        self._trap(fault_points.RUNNING, signal.SIGSTOP, fault)
        return self._thaw(fault)

    # The broker

    _broker_cut = partialmethod(_serve, "broker.cut", "broker.restore")
    _broker_silent = partialmethod(_serve, "broker.silence", "broker.resume")
    _broker_restarted = partialmethod(_restart, "broker", signal.SIGKILL)

    def _messages_lost(self, _: Fault) -> float:
        self.servers.lose_messages()
        return time.monotonic()

    def _messages_repeated(self, fault: Fault) -> float:
        begun = [line for line in notes.read(self.notes / notes.BEGINS) if line["what"] == "begin"]
        earlier = Random(fault.number).sample(begun, min(REPEATED, len(begun)))  # noqa: S311 - any of them will do
        with app.connection_for_write(self.servers.services.broker_url) as connection:
            for line in [*begun[-REPEATED:], *earlier]:
                _publish_again(line, connection)
        return time.monotonic()

    # The database

    _database_cut = _database_cut_long = partialmethod(_serve, "database.cut", "database.restore")
    _database_silent = _database_silent_long = partialmethod(_serve, "database.silence", "database.resume")
    _database_answers_lost = partialmethod(_serve, "database.lose_answers", "database.find_answers")
    _database_restarted_fast = partialmethod(_restart, "database", signal.SIGINT)
    # A crash.
    _database_restarted_immediate = partialmethod(_restart, "database", signal.SIGQUIT)

    def _database_disconnected(self, _: Fault) -> float:
        self.servers.disconnect_all()
        return time.monotonic()

    def _long_transaction(self, fault: Fault) -> float:
        # It ends with the server if that is stopped meanwhile.
        with suppress(psycopg.OperationalError), snapshot(self.servers.database_url) as connection:
            connection.execute("SELECT txid_current()")
            time.sleep(fault.seconds)
        return time.monotonic()


def _publish_again(line: dict[str, Any], connection: Any) -> None:
    """Deliver a message once more, just as it was."""
    app.send_task(
        line["task"],
        kwargs=line["kwargs"],
        task_id=line["call"],
        queue=line["queue"],
        headers={TICKET_HEADER: line["ticket"]},
        retries=line["retries"],
        connection=connection,
    )
