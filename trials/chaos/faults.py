"""How each fault of the plan strikes."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from subprocess import TimeoutExpired
from typing import Any

import psutil
import psycopg

from dispatcher.messages.tickets import TICKET_HEADER
from project.celery import app
from trials.chaos import fault_points, notes
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
HOLD_HORIZON = "SELECT txid_current(), (SELECT count(*) FROM dispatcher_callqueue)"


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

    # Processes of all kinds

    def _killed(self, fault: Fault) -> float:
        return self._signal(fault.target, signal.SIGKILL)

    _worker_killed = _dispenser_killed = _sender_killed = _beat_killed = _killed

    def _worker_killed_at_start(self, fault: Fault) -> float:
        return self._trap(fault, fault_points.RUNNING, signal.SIGKILL)

    def _killed_publishing(self, fault: Fault) -> float:
        return self._trap(fault, fault_points.PUBLISHING, signal.SIGKILL)

    _dispenser_killed_publishing = _sender_killed_publishing = _killed_publishing

    def _sender_killed_waking(self, fault: Fault) -> float:
        return self._trap(fault, fault_points.WAKING, signal.SIGKILL)

    # Workers

    def _child_killed(self, fault: Fault) -> float:
        with suppress(psutil.NoSuchProcess):
            self._child(fault).kill()
        return time.monotonic()

    def _child_killed_as_notified(self, fault: Fault) -> float:
        return self._trap(fault, fault_points.NOTIFIED, signal.SIGKILL, alone=True)

    def _child_killed_at_start(self, fault: Fault) -> float:
        return self._trap(fault, fault_points.RUNNING, signal.SIGKILL, alone=True)

    def _child_killed_at_end(self, fault: Fault) -> float:
        return self._trap(fault, fault_points.ENDED, signal.SIGKILL, alone=True)

    def _main_killed(self, fault: Fault) -> float:
        with suppress(psutil.NoSuchProcess):
            self._main(fault).kill()
        return time.monotonic()

    def _child_frozen(self, fault: Fault) -> float:
        return _frozen(fault, self._child)

    def _main_frozen(self, fault: Fault) -> float:
        return _frozen(fault, self._main)

    def _worker_frozen(self, fault: Fault) -> float:
        self._signal(fault.target, signal.SIGSTOP)
        return self._thaw(fault)

    def _worker_frozen_at_start(self, fault: Fault) -> float:
        self._trap(fault, fault_points.RUNNING, signal.SIGSTOP)
        return self._thaw(fault)

    def _worker_warm_shutdown(self, fault: Fault) -> float:
        return self._shut_down(fault, signal.SIGTERM)

    def _worker_cold_shutdown(self, fault: Fault) -> float:
        return self._shut_down(fault, signal.SIGQUIT)

    # The broker

    def _messages_lost(self, fault: Fault) -> float:
        del fault
        self.servers.lose_messages()
        return time.monotonic()

    def _messages_repeated(self, fault: Fault) -> float:
        begun = [line for line in notes.read(self.notes / notes.BEGINS) if line["what"] == "begin"]
        earlier = Random(fault.number).sample(begun, min(REPEATED, len(begun)))  # noqa: S311 - any of them will do
        with app.connection_for_write(self.servers.services.broker_url) as connection:
            for line in [*begun[-REPEATED:], *earlier]:
                _publish_again(line, connection)
        return time.monotonic()

    def _broker_cut(self, fault: Fault) -> float:
        return _lasting(fault, self.servers.broker.cut, self.servers.broker.restore)

    def _broker_silent(self, fault: Fault) -> float:
        return _lasting(fault, self.servers.broker.silence, self.servers.broker.resume)

    def _broker_restarted(self, fault: Fault) -> float:
        return _lasting(fault, self.servers.stop_broker, self.servers.start_broker)

    # The database

    def _database_cut(self, fault: Fault) -> float:
        return _lasting(fault, self.servers.database.cut, self.servers.database.restore)

    def _database_silent(self, fault: Fault) -> float:
        return _lasting(fault, self.servers.database.silence, self.servers.database.resume)

    _database_cut_long, _database_silent_long = _database_cut, _database_silent

    def _database_answers_lost(self, fault: Fault) -> float:
        return _lasting(fault, self.servers.database.lose_answers, self.servers.database.find_answers)

    def _database_disconnected(self, fault: Fault) -> float:
        del fault
        self.servers.disconnect_all()
        return time.monotonic()

    def _database_restarted_fast(self, fault: Fault) -> float:
        return self._restart_database(fault, signal.SIGINT)

    def _database_restarted_immediate(self, fault: Fault) -> float:
        return self._restart_database(fault, signal.SIGQUIT)

    def _long_transaction(self, fault: Fault) -> float:
        # It ends with the server if that is stopped meanwhile.
        with suppress(psycopg.OperationalError), self.servers.connect() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.execute(HOLD_HORIZON)
            time.sleep(fault.seconds)
        return time.monotonic()

    # What they are made of

    def _main(self, fault: Fault) -> psutil.Process:
        return psutil.Process(self.supervisor.child(fault.target).pid)

    def _child(self, fault: Fault) -> psutil.Process:
        """Return any child of a worker; the main process if it has none."""
        main = self._main(fault)
        return Random(fault.number).choice(main.children() or [main])  # noqa: S311 - any of them will do

    def _signal(self, name: str, how: signal.Signals) -> float:
        with suppress(ProcessLookupError):
            os.killpg(self.supervisor.child(name).pid, how)
        return time.monotonic()

    def _trap(self, fault: Fault, point: str, how: signal.Signals, *, alone: bool = False) -> float:
        fault_point = fault_points.path(self.notes, fault.target, point)
        fault_points.arm(fault_point, how, alone=alone)
        deadline = time.monotonic() + TRAP_PATIENCE
        while fault_point.exists() and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
        if fault_points.disarm(fault_point):
            self.remarks.append(f"no process reached the fault_point of fault {fault.number}: struck from outside")
            return self._child_killed(fault) if alone else self._signal(fault.target, how)
        return time.monotonic()

    def _thaw(self, fault: Fault) -> float:
        time.sleep(fault.seconds)
        return self._signal(fault.target, signal.SIGCONT)

    def _shut_down(self, fault: Fault, how: signal.Signals) -> float:
        child = self.supervisor.child(fault.target)
        child.popen.send_signal(how)
        asked_at = time.monotonic()
        try:
            child.popen.wait(SHUTDOWN_PATIENCE)
        except TimeoutExpired:
            self.remarks.append(f"{fault.target} did not end {SHUTDOWN_PATIENCE:g} s after {how.name}, and was killed")
            child.kill()
        return asked_at

    def _restart_database(self, fault: Fault, how: signal.Signals) -> float:
        return _lasting(fault, partial(self.servers.stop_database, how), self.servers.start_database)


def _lasting(fault: Fault, begin: Callable[[], object], end: Callable[[], object]) -> float:
    begin()
    time.sleep(fault.seconds)
    end()
    return time.monotonic()


def _frozen(fault: Fault, process_of: Callable[[Fault], psutil.Process]) -> float:
    with suppress(psutil.NoSuchProcess):
        process = process_of(fault)
        return _lasting(fault, process.suspend, process.resume)
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
