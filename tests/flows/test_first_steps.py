"""First steps in an empty project, word for word: the README's, with and without a broker, and the API's guide."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, STDOUT
from urllib.parse import urlsplit
from uuid import uuid4

import dj_database_url
import psycopg
import pytest
from psycopg import sql

from project.processes import Stack, logged
from project.services import Services
from tests.contracts.source import blocks

pytestmark = pytest.mark.broker

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text().split("## Into an existing project")[1].split("\n## ")[0]
STEPS, BROKER = README.split("### Through the broker")
GUIDE = (ROOT / "docs" / "how-to" / "open-job-spec.md").read_text().split("\n## Send")[0]
PYTHON = os.environ.get("RELEASE_PYTHON", "")
"""Of an environment that has the package, as `make release` makes it; empty: this one, with the working tree."""
UNSET = ("-u", "DJANGO_SETTINGS_MODULE", "-u", "CELERY_BROKER_URL")
"""What the tests' own project has set, and a new user has not."""
READY = {"worker": r" ready\.$", "beat": r"beat: Starting"}
PAY = """
from django.test import Client

answer = Client(headers={"host": "localhost"}).post("/orders/acme/7/pay")
print(answer.status_code, answer.json()["call"])
"""
END = """
import time

from dispatcher.models import CallQueue

call = CallQueue.objects.get()
until = time.monotonic() + 30
while call.finished_at is None and time.monotonic() < until:
    time.sleep(0.1)
    call.refresh_from_db()
print(call.state, call.result)
"""
DELIVERY = """
from dispatcher.models import Queue

print([queue.delivery for queue in Queue.objects.filter(name="celery")] or ["broker"])
"""
MANIFEST = """
from django.test import Client

print(Client(headers={"host": "localhost"}).get("/ojs/manifest").status_code)
"""


class Site:
    """An empty project, in which a reader follows the documentation."""

    def __init__(self, home: Path, stack: Stack, delivery: str, *, database_url: str, broker_url: str) -> None:
        self.home, self.stack, self.delivery = home, stack, delivery
        self.env = {"PYTHONPATH": str(home) if PYTHON else os.pathsep.join([str(home), str(ROOT)])}
        self.addresses = addresses(database_url, broker_url)

    def run(self, *words: str) -> str:
        """Run a command in the project, and return what it prints."""
        done = subprocess.run(
            command(*words),
            cwd=self.home,
            env=os.environ | self.env,
            stdout=PIPE,
            stderr=STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def shell(self, code: str) -> str:
        """Run code in the project's shell, and return what it prints."""
        return self.run("python", "manage.py", "shell", "-c", code)

    def follow(self, line: str) -> None:
        """Run a command to its end and without a warning, or start a worker or beat."""
        words = shlex.split(line)
        if words[0] == "python":
            assert "WARNING" not in self.run(*words)
            return
        name = next((word.split("@")[0] for word in words if "@" in word), "beat")
        ready = logged(READY[words[3]])
        self.stack.start(name, command(*words, "-l", "INFO"), ready=ready, env=self.env, cwd=self.home)

    def write(self, text: str) -> None:
        """Write the files of a page: each block of Python names its own in the first line."""
        for block in blocks(text, "python"):
            named = re.match(r"# (\S+\.py)", block)
            assert named, f"no file is named:\n{block}"
            with (self.home / named[1]).open("a") as file:
                file.write(f"\n\n{block}")
        with (self.home / "shop" / "settings.py").open("a") as file:
            file.write(self.addresses)


def command(program: str, *words: str) -> list[str]:
    modules = {"python": (), "celery": ("-m", "celery"), "django-admin": ("-m", "django")}
    return ["env", *UNSET, PYTHON or sys.executable, *modules[program], *words]


def addresses(database_url: str, broker_url: str) -> str:
    """Return what differs from machine to machine, as the end of the settings."""
    parsed = dj_database_url.parse(database_url)
    at = {name: parsed[name] for name in ("NAME", "USER", "PASSWORD", "PORT")}
    at["HOST"] = parsed["HOST"] or parsed.get("OPTIONS", {}).get("host", "")
    lines = [f'DATABASES["default"] |= {at!r}', f"CELERY_BROKER_URL = {broker_url!r}"]
    if broker_url.startswith("amqp"):
        lines.append('CELERY_BROKER_TRANSPORT_OPTIONS = {"confirm_publish": True}')
    return "\n" + "\n".join(lines) + "\n"


@pytest.fixture(
    scope="module",
    params=[pytest.param("direct", marks=pytest.mark.direct), pytest.param("broker", marks=pytest.mark.slow)],
)
def site(
    services: Services, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Site]:
    """Follow the README to the end of its fourth step, in an empty project with a database of its own."""
    name = f"first_{uuid4().hex[:12]}"
    address = urlsplit(services.database_url)
    server = address._replace(path="/postgres").geturl()
    owner = f"{name}:shop@{address.netloc.rpartition('@')[2]}"
    database = address._replace(netloc=owner, path=f"/{name}").geturl()
    with psycopg.connect(server, autocommit=True) as connection:
        for statement in blocks(STEPS, "sql")[0].splitlines():
            connection.execute(re.sub(r"(ROLE|DATABASE|OWNER) shop\b", rf"\1 {name}", statement).encode())
    with Stack(services.run_dir) as stack:
        broker_url = services.broker_url if request.param == "broker" else "memory://"
        site = Site(
            tmp_path_factory.mktemp("first"), stack, request.param, database_url=database, broker_url=broker_url
        )
        site.run("django-admin", "startproject", "shop", ".")
        site.run("python", "manage.py", "startapp", "orders")
        site.write(README if request.param == "broker" else STEPS)
        commands = blocks(BROKER, "sh")[0] if request.param == "broker" else blocks(STEPS, "sh")[1]
        for line in commands.splitlines():
            site.follow(line)
        stack.wait_ready()
        yield site
        for child in list(stack.children):
            stack.kill(child)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def test_the_five_steps_of_the_readme_lead_to_a_call_that_has_run(site: Site) -> None:
    assert "202" in site.shell(PAY)
    assert "completed order 7 is paid" in site.shell(END)
    assert " 1/100 in 1m " in site.run("python", "manage.py", "rate_limit_status")
    assert site.delivery in site.shell(DELIVERY)


@pytest.mark.ojs
@pytest.mark.parametrize("site", [pytest.param("direct", marks=pytest.mark.direct)], indirect=True)
def test_the_guide_to_the_open_job_spec_leads_to_a_token_and_a_manifest(site: Site) -> None:
    site.write(GUIDE)
    site.run("python", "manage.py", "check", "--fail-level", "WARNING")
    (tokens,) = blocks(GUIDE, "sh")
    for line in tokens.splitlines():
        assert site.run(*shlex.split(line)).strip()
    assert "200" in site.shell(MANIFEST)
