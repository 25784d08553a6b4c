"""docker-compose.yml and the Dockerfile name only what the project has: Docker may not be there to try."""

import ast
import importlib
import re
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from celery.bin.base import CLIContext
from celery.bin.celery import celery as celery_cli
from django.conf import settings
from gunicorn.config import Config

from dispatcher.conf import conf
from project.celery import app

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
PROGRAMS = {"celery", "gunicorn", "python"}


def celery_options(arguments: list[str]) -> dict[str, Any]:
    """Parse `--app project SUBCOMMAND ...` as Celery does; an unknown option or value raises."""
    assert arguments[:2] == ["--app", "project"]
    context = CLIContext(app=app, no_color=True, workdir=None)
    return dict(celery_cli.commands[arguments[2]].make_context(arguments[2], arguments[3:], obj=context).params)


def gunicorn_options(arguments: list[str]) -> dict[str, Any]:
    return vars(Config().parser().parse_args(arguments))


def options_of(service: str) -> dict[str, Any]:
    program, *arguments = SERVICES[service]["command"]
    return {"celery": celery_options, "gunicorn": gunicorn_options}[program](arguments)


def variables_read_by_settings() -> set[str]:
    tree = ast.parse((ROOT / "project" / "settings.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return {ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "os.environ.get"}


def test_the_stack_is_complete() -> None:
    assert set(SERVICES) == {"postgres", "rabbitmq", "migrate", "worker", "dispenser", "beat", "web"}


@pytest.mark.parametrize("service", OURS)
def test_every_variable_given_is_read(service: str) -> None:
    assert set(OURS[service]["environment"]) <= variables_read_by_settings()


@pytest.mark.parametrize("service", OURS)
def test_every_program_is_one_that_the_image_has(service: str) -> None:
    installed = (ROOT / "requirements.txt").read_text()
    program = OURS[service]["command"][0]
    assert program in PROGRAMS
    assert program == "python" or re.search(rf"^{program}\b", installed, re.MULTILINE)


@pytest.mark.parametrize("name", SERVICES)
def test_every_dependency_exists_and_can_meet_its_condition(name: str) -> None:
    for other, asked in SERVICES[name].get("depends_on", {}).items():
        assert asked["condition"] != "service_healthy" or "healthcheck" in SERVICES[other]


@pytest.mark.parametrize("name", set(SERVICES) - {"migrate"})
def test_every_service_that_stays_up_is_watched(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]


def test_the_worker_serves_every_queue_that_has_limits() -> None:
    limited = {key.removeprefix("queue:") for key in settings.DISPATCHER["keys"] if key.startswith("queue:")}
    assert {app.conf.task_default_queue, *limited} <= set(options_of("worker")["queues"])


def test_the_dispenser_serves_the_queue_of_the_periodic_tasks_alone() -> None:
    assert options_of("dispenser")["queues"] == [conf().dispenser_queue]


def test_beat_takes_its_options() -> None:
    assert options_of("beat")["pidfile"] == "/tmp/beat.pid"  # noqa: S108


@pytest.mark.parametrize("service", ["worker", "dispenser"])
def test_a_health_check_asks_the_worker_by_its_name(service: str) -> None:
    _, command = SERVICES[service]["healthcheck"]["test"]
    program, *arguments = shlex.split(command.replace("$$HOSTNAME", socket.gethostname()))
    assert program == "celery"
    assert celery_options(arguments)["destination"] == [options_of(service)["hostname"]]


def test_the_web_server_serves_the_application_on_the_published_port() -> None:
    options = options_of("web")
    port = options["bind"][0].rpartition(":")[2]
    assert callable(importlib.import_module(options["args"][0]).application)
    assert [published.rpartition(":")[2] for published in SERVICES["web"]["ports"]] == [port]
    assert f"EXPOSE {port}\n" in DOCKERFILE


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    secrets = re.findall(r"\$\{(\w*(?:PASSWORD|SECRET)\w*)(\S?\S?)", text)
    assert {name for name, _ in secrets} == {"POSTGRES_PASSWORD", "RABBITMQ_PASSWORD", "SECRET_KEY"}
    assert {default for _, default in secrets} == {":?"}


def test_the_image_is_built_of_what_is_there() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    for source in re.findall(r"^COPY (\S+) ", DOCKERFILE, re.MULTILINE):
        assert (ROOT / source).exists()
        assert f"!{source}" in ignore
