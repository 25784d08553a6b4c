"""The servers and processes of `make run` and the demo: nothing is left behind, whatever ends them."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from project import run_dirs
from project.processes import RUN_DIR_MARK, ChildFailed, Stack, logged, reap
from project.reachable import fault_of
from project.run_dirs import Addresses, RunDirBusy, acquire
from project.services import embedded

RUN_UNTIL_KILLED = """
import time
from project.services import embedded
with embedded(name="probe"):
    print("up", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(run_dirs, "RUN", tmp_path)
    return tmp_path


@pytest.fixture
def probe() -> Iterator[Path]:
    run_dir = run_dirs.RUN / "probe"
    yield run_dir
    shutil.rmtree(run_dir)


@pytest.fixture
def no_servers_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("CELERY_BROKER_URL", raising=False)


def marked(run_dir: Path) -> set[int]:
    """Return the processes that were started for a run_dir and are alive."""
    found = set()
    for process in psutil.process_iter():
        try:
            if process.environ().get(RUN_DIR_MARK) == str(run_dir) and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


@contextmanager
def running() -> Iterator["subprocess.Popen[bytes]"]:
    """Have a process whose servers are up."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN_UNTIL_KILLED], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == b"up\n"
        yield run


def test_what_a_killed_run_left_behind_ends_when_the_next_one_starts(probe: Path, no_servers_given: None) -> None:
    with running() as run:
        left = marked(probe)
        run.kill()
    assert left
    assert left == marked(probe)
    with embedded(name="probe") as services:
        assert not left & marked(probe)
        assert psycopg.connect(services.database_url).closed is False
    assert marked(probe) == set()


def test_a_terminated_run_stops_its_servers(probe: Path, no_servers_given: None) -> None:
    with running() as run:
        run.terminate()
    assert marked(probe) == set()


def test_a_given_database_is_used_as_it_is(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere/theirs")
    monkeypatch.setenv("CELERY_BROKER_URL", "amqp://elsewhere")
    with embedded(name="probe") as services:
        assert services.database_url == os.environ["DATABASE_URL"] == "postgresql://elsewhere/theirs"
        assert (services.owns_database, services.owns_broker) == (False, False)
    assert not (runs / "probe" / "postgres").exists()


def test_the_addresses_of_a_stack_count_only_while_it_runs(runs: Path) -> None:
    addresses = Addresses(database_url="postgresql://here", broker_url="redis://here")
    with acquire("demo") as run_dir:
        run_dirs.publish(run_dir, addresses)
        assert run_dirs.running_addresses() == addresses
    assert run_dirs.running_addresses() is None


def test_a_home_in_use_is_refused_or_passed_over(runs: Path) -> None:
    with acquire("tests") as first, acquire("tests", spares=True) as second:
        assert (first, second) == (runs / "tests", runs / "tests-2")
        with pytest.raises(RunDirBusy), acquire("tests"):
            pass


def test_a_stack_ends_its_children_and_theirs(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.start("parent", ["sh", "-c", "trap '' TERM; sleep 60 & echo ready; wait"], ready=logged("ready"))
        stack.wait_ready()
        started = marked(tmp_path)
        began = time.monotonic()
        stack.stop_all(grace=0.2)
    assert len(started) == 2
    assert marked(tmp_path) == set()
    assert time.monotonic() - began < 5


def test_a_child_that_ends_before_it_is_ready_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with Stack(tmp_path) as stack:
        stack.start("short", ["sh", "-c", "echo no such option; exit 3"], ready=logged("ready"))
        with pytest.raises(ChildFailed, match=r"(?s)short ended with exit code 3.*no such option"):
            stack.wait_ready()


def test_nothing_is_reaped_but_the_processes_of_the_home(tmp_path: Path) -> None:
    with Stack(tmp_path / "one") as one, Stack(tmp_path / "two") as two:
        one.start("sleeper", ["sleep", "60"])
        two.start("sleeper", ["sleep", "60"])
        assert reap(tmp_path / "one") == 1
        assert marked(tmp_path / "one") == set()
        assert len(marked(tmp_path / "two")) == 1


def test_a_server_that_cannot_be_reached_is_named() -> None:
    url = "postgresql://postgres@127.0.0.1:1/none"
    assert (fault_of(url) or "").startswith(f"{url}: ")


def test_the_secret_key_is_made_once_and_is_for_its_owner_alone(runs: Path) -> None:
    key = run_dirs.secret_key()
    assert run_dirs.secret_key() == key
    assert (runs / "secret_key").stat().st_mode & 0o077 == 0
    assert sorted(path.name for path in runs.iterdir()) == ["secret_key"]
