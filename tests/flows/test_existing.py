"""An existing project, as it is and with limits: a diff of its settings, no call site, and the same results."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import warnings
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from project.processes import Stack, logged
from project.services import Services
from tests.contracts.source import blocks

pytestmark = [pytest.mark.broker, pytest.mark.slow]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "existing"
README = (ROOT / "examples" / "README.md").read_text()
START = """
import json
from orders.tasks import start, wait
print(json.dumps(wait(start(3))))
"""
TASKS = """
import json
from dispatcher.models import CallQueue
rows = CallQueue.objects.filter(finished_at__isnull=False).order_by("position")
print(json.dumps(list(rows.values_list("task", "state", "attempt", "lane__key_ids"))))
"""
AT_ONCE = """
from dispatcher.models import CallQueue
runs = [(c.started_at, c.finished_at) for c in CallQueue.objects.filter(costs={}, attempt=1)
        if c.task not in ("orders.tasks.receipt",)]
print(max(sum(a <= at < b for a, b in runs) for at, _ in runs))
"""
REMINDED = """
import time
from dispatcher.models import CallQueue
until = time.monotonic() + 30
rows = CallQueue.objects.filter(task="orders.tasks.remind", state="completed")
while not rows.exists() and time.monotonic() < until:
    time.sleep(0.1)
print(rows.exists())
"""


class Site:
    """A copy of the example, with a database of its own."""

    def __init__(self, home: Path, stack: Stack, env: dict[str, str]) -> None:
        self.home, self.stack = home, stack
        self.env = {"DJANGO_SETTINGS_MODULE": "bookshop.settings", **env}
        self.use(ROOT)

    def use(self, release: Path) -> None:
        """Run the dispatcher of a release from now on."""
        self.env["PYTHONPATH"] = os.pathsep.join([str(self.home), str(release)])

    def run(self, *words: str) -> str:
        """Run a program of Python in the project, and return what it prints last."""
        command = [sys.executable, "-m", *words]
        done = subprocess.run(
            command, cwd=self.home, env=os.environ | self.env, stdout=PIPE, stderr=STDOUT, text=True, check=False
        )
        assert done.returncode == 0, done.stdout
        return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""

    def do(self, line: str) -> None:
        """Carry out a line for a shell, with this Python."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        subprocess.run(["/bin/sh", "-c", line], cwd=self.home, env=os.environ | self.env | {"PATH": path}, check=True)

    def shell(self, code: str) -> Any:
        """Run code in the project's shell, and return what it prints last, as JSON."""
        return json.loads(self.run("django", "shell", "--no-imports", "-c", code).replace("True", "true"))

    def start(self, name: str, *words: str) -> None:
        """Start a worker or beat."""
        command = [sys.executable, "-m", "celery", "-A", "bookshop", *words, "-l", "INFO"]
        ready = logged(r" ready\.$" if words[0] == "worker" else r"beat: Starting")
        self.stack.start(name, command, ready=ready, env=self.env, cwd=self.home)
        self.stack.wait_ready()


@pytest.fixture
def site(services: Services, tmp_path: Path) -> Iterator[Site]:
    name = f"existing_{uuid4().hex[:12]}"
    address = urlsplit(services.database_url)
    with psycopg.connect(address._replace(path="/postgres").geturl(), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        home = shutil.copytree(EXAMPLE, tmp_path / "site")
        backend = services.broker_url if services.broker_url.startswith("redis") else f"file://{tmp_path}"
        env = {
            "DATABASE_URL": address._replace(path=f"/{name}").geturl(),
            "CELERY_BROKER_URL": services.broker_url,
            "CELERY_RESULT_BACKEND": backend,
            "QUEUE": name,
        }
        with Stack(services.run_dir) as stack:
            yield Site(home, stack, env)
            for child in list(stack.children):
                stack.kill(child)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def put_under_limits(site: Site) -> None:
    """Apply the example's diff, as its reader does."""
    site.do("git apply limits.diff")
    site.run("django", "migrate", "-v", "0")
    site.run("django", "check", "--fail-level", "ERROR")


def worker(site: Site, name: str = "worker") -> None:
    site.start(name, "worker", "-n", f"existing-{uuid4().hex}@%h", "-c", "3", "--without-mingle")


@pytest.mark.parametrize("name", ["limits.diff", "without-a-broker.diff"])
def test_a_diff_has_ten_lines_at_the_most_and_none_of_a_call_site(name: str) -> None:
    lines = (EXAMPLE / name).read_text().splitlines()
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in {"+++", "---"}]
    assert len(changed) <= 10
    assert [line for line in lines if line.startswith("+++")] == ["+++ b/bookshop/settings.py"]


@pytest.mark.smoke
def test_an_existing_project_has_the_same_results_under_limits(site: Site) -> None:
    site.run("django", "migrate", "-v", "0")
    worker(site)
    before = site.shell(START)
    site.stack.kill("worker")
    put_under_limits(site)
    worker(site)
    assert site.shell(START) == before
    calls = site.shell(TASKS)
    assert {call[0].rpartition(".")[2] for call in calls} == {
        *("sign", "charge", "refuse", "price", "total", "receipt", "report")
    }
    assert sorted({call[2] for call in calls if call[0] == "orders.tasks.charge"}) == [3]
    assert [call[1:3] for call in calls if call[0] == "orders.tasks.refuse"] == [["discarded", 1]]
    assert {call[1] for call in calls if call[0] != "orders.tasks.refuse"} == {"completed"}
    assert all(len(call[3]) == 1 for call in calls)
    assert site.shell(AT_ONCE) == 1, "at once under a concurrency of 1"


def test_its_own_tests_stay_green(site: Site) -> None:
    for change in (lambda _: None, put_under_limits):
        change(site)
        site.run("django", "test", "-v", "1")


def test_a_row_of_beat_obeys_without_a_change(site: Site) -> None:
    put_under_limits(site)
    worker(site)
    site.start("beat", "beat", "--pidfile=", "-s", str(site.home / "schedule"))
    assert site.shell(REMINDED)


def test_the_readme_leads_through_each_variant_to_the_same_results(site: Site) -> None:
    # Without Redis, which closes chords by itself.
    site.env["CELERY_RESULT_BACKEND"] = f"file://{site.home}"
    found = []
    for line in "".join(blocks(README, "sh")).splitlines():
        match line.split():
            case ["pip" | "cd" | "export", *_]:
                # The addresses are those of the tests.
                continue
            case ["celery", *_]:
                if "worker" in site.stack.children:
                    site.stack.kill("worker")
                worker(site)
                found.append(site.shell(START))
            case _:
                site.do(line)
    limited, without_broker = found[1:]
    assert limited == without_broker == found[0]
    assert {call[0] for call in site.shell(TASKS)} > {"celery.chord_unlock"}, "all tasks go through PostgreSQL"


@pytest.fixture
def neighbour(tmp_path: Path) -> Path:
    """Return the release before this one; as long as none is tagged, a copy of this one, and a warning that says so."""
    home = tmp_path / "neighbour"
    tags = ["git", "describe", "--tags", "--abbrev=0", "--match", "v*", "HEAD^"]
    found = subprocess.run(tags, cwd=ROOT, capture_output=True, text=True, check=False)
    if found.returncode:
        warnings.warn("No release is tagged yet, so a copy of this one is its neighbour.", stacklevel=1)
        shutil.copytree(ROOT / "dispatcher", home / "dispatcher")
    else:
        archive = subprocess.run(
            ["git", "archive", found.stdout.strip(), "dispatcher"],  # noqa: S607 -- the one in the path
            cwd=ROOT,
            stdout=PIPE,
            check=True,
        )
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            files.extractall(home, filter="data")
    return home


@pytest.mark.parametrize("first", ["migrate", "deploy"])
def test_two_neighbouring_releases_run_side_by_side_in_both_orders(site: Site, neighbour: Path, first: str) -> None:
    site.use(neighbour)
    put_under_limits(site)
    worker(site, "old")
    alone = site.shell(START)
    steps = [lambda: site.run("django", "migrate", "-v", "0"), lambda: worker(site, "new")]
    for step, sender in zip(steps if first == "migrate" else reversed(steps), (ROOT, neighbour), strict=True):
        site.use(ROOT)
        step()
        site.use(sender)
        assert site.shell(START) == alone
    site.stack.kill("old")
    site.use(ROOT)
    assert site.shell(START) == alone
    assert site.run("django", "dispatcher_audit").startswith("✓")
