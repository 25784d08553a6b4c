"""A plugin of pytest: one session for several faults, each tried in a process of its own that has all imported already.

Statements are read when they are first run, so a fault in one is planted before its process forks. A fault in Python is
planted before the session starts, which then is for that one alone. The names of the faults come in MUTANTS; what came
of each goes to the file descriptor MUTANTS_FD, as a line of JSON.
"""

import json
import os
import select
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, ClassVar

import pytest

from trials.mutants.faults import Fault, read

LONGEST_S = 300
"""How long the tests of a fault may take; one that never ends is caught."""


class _Child:
    """The process that tries one fault."""

    failures: ClassVar[IO[str] | None] = None
    """Where it reports which tests have failed; None in the session's own process."""


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests of each fault, in a process for each, which goes on with the loop as usual."""
    tree, names = Path.cwd(), os.environ["MUTANTS"].split()
    items = {fault.name: _items(session, fault) for fault in read() if fault.name in names}
    for fault in (fault for fault in read() if fault.name in names):
        before = {} if fault.is_code else fault.plant(tree)
        began = time.monotonic()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            session.items = items[fault.name]
            _Child.failures = os.fdopen(writer, "w", buffering=1)
            return None
        os.close(writer)
        failures = _wait(pid, reader)
        for path, text in before.items():
            path.write_text(text)
        _report(fault, failures, time.monotonic() - began)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Report a test that has failed. One that is expected to fail, and passes with the fault, shows nothing."""
    if str(report.longrepr).startswith("[XPASS"):
        report.outcome = "passed"
    if report.failed and _Child.failures is not None:
        crash = getattr(report.longrepr, "reprcrash", None)
        error = crash.message if crash is not None else str(report.longrepr)
        _Child.failures.write(f"{report.nodeid}: {error.partition(chr(10))[0][:120]}\n")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish() -> None:
    """End the process of a fault; what the session has open is its parent's to close."""
    if _Child.failures is not None:
        _Child.failures.close()
        os._exit(0)


def _items(session: pytest.Session, fault: Fault) -> list[pytest.Item]:
    return [item for test in fault.tests for item in session.items if item.nodeid.startswith(f"tests/{test}")]


def _wait(pid: int, reader: int) -> list[str]:
    """Return which tests failed in a process, when it has ended."""
    found, until = b"", time.monotonic() + LONGEST_S
    while select.select([reader], [], [], max(0, until - time.monotonic()))[0]:
        if not (read_now := os.read(reader, 65536)):
            break
        found += read_now
    else:
        os.kill(pid, signal.SIGKILL)
        found += b"the tests did not end\n"
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    failures = found.decode().splitlines()
    return failures or ([] if status == 0 else [f"the process of the tests ended with status {status}"])


def _report(fault: Fault, failures: Sequence[str], seconds: float) -> None:
    line = json.dumps({"name": fault.name, "failures": failures, "seconds": seconds})
    os.write(int(os.environ["MUTANTS_FD"]), f"{line}\n".encode())
