"""docker-compose.yml and the Dockerfile name what the project has, and keep what they promise; no Docker is needed."""

import ast
import json
import re
from datetime import timedelta
from typing import Any

import click
import pytest
import yaml
from celery.bin.base import CLIContext
from celery.bin.celery import celery as celery_cli
from django.conf import settings
from django.urls import Resolver404, resolve

from dispatcher.conf import conf
from project import serve
from project.celery import app
from tests.contracts.source import ROOT

COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()
IMAGE = "django-callqueue"
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == IMAGE}
PROGRAMS = {"celery", "python"}
LONGEST_WAIT = timedelta(seconds=30)
"""The longest `wait_ms` of a fetch."""


def celery_options(arguments: list[str]) -> dict[str, Any]:
    """Parse `--app project SUBCOMMAND ...` as Celery does; an unknown option or value raises."""
    assert arguments[:2] == ["--app", "project"]
    context = CLIContext(app=app, no_color=True, workdir=None)
    return dict(celery_cli.commands[arguments[2]].make_context(arguments[2], arguments[3:], obj=context).params)


def options_of(service: str) -> dict[str, Any]:
    program, *arguments = SERVICES[service]["command"]
    if program == "celery":
        return celery_options(arguments)
    assert arguments[:2] == ["-m", "project.serve"]
    return vars(serve.argument_parser().parse_args(arguments[2:]))


def variables_read() -> set[str]:
    """Return the names that the project reads from the environment, those of files included."""
    readers = {"environment.read", "environment.read_list", "os.environ.get"}
    found: set[str] = set()
    for module in ("settings", "celery"):
        tree = ast.parse((ROOT / "project" / f"{module}.py").read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        found |= {ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) in readers}
    return found | {f"{name}_FILE" for name in found}


def duration(text: str) -> timedelta:
    """Read a duration of Compose; of `${NAME:-10m}` its default."""
    (number, unit), *_ = re.findall(r"(\d+)(s|m)\b", text)
    return timedelta(seconds=int(number)) if unit == "s" else timedelta(minutes=int(number))


def test_the_stack_is_complete_and_one_service_builds_the_image_that_the_others_name() -> None:
    ours = {"migrate", "worker", "dispenser", "beat", "web", "api"}
    assert set(OURS) == ours
    assert set(SERVICES) == {"postgres", "rabbitmq"} | ours
    assert [name for name, service in SERVICES.items() if "build" in service] == ["migrate"]
    by_default = {name for name, service in SERVICES.items() if "profiles" not in service}
    assert by_default == {"postgres", "migrate", "worker", "web"}
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["broker"]} == {
        "rabbitmq",
        "dispenser",
        "beat",
    }
    # Another image of this name in a registry would be a stranger's.
    assert {service["pull_policy"] for service in OURS.values()} == {"never"}


def test_every_variable_given_is_read() -> None:
    read = variables_read()
    assert {name: unread for name, service in OURS.items() if (unread := set(service["environment"]) - read)} == {}


def test_no_variable_is_read_by_celery_past_the_settings() -> None:
    # It would win over the setting, which has the password from the secret.
    options = {option.envvar for option in celery_cli.params if isinstance(option, click.Option)}
    given = {(service, name) for service, body in OURS.items() for name in body["environment"]}
    assert [each for each in given if each[1] in options or each[1].startswith("CELERY_")] == []


def test_every_program_is_one_that_the_image_has() -> None:
    installed = (ROOT / "requirements.lock").read_text()
    programs = {service["command"][0] for service in OURS.values()}
    assert programs <= PROGRAMS
    assert {name for name in programs - {"python"} if not re.search(rf"^{name}\b", installed, re.MULTILINE)} == set()


def test_every_service_waits_for_what_it_needs_and_all_of_the_project_for_the_migrations() -> None:
    asked = [(name, *each) for name, service in SERVICES.items() for each in service.get("depends_on", {}).items()]
    assert asked
    for name, other, needed in asked:
        assert needed["condition"] != "service_healthy" or "healthcheck" in SERVICES[other], (name, other)
        # What another profile has may be missing.
        assert needed.get("required", True) == ("profiles" not in SERVICES[other]), (name, other)
    for name in set(OURS) - {"migrate"}:
        assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}, name
    assert SERVICES["migrate"]["restart"] == "no"


def test_every_service_that_stays_up_is_watched_restarted_and_has_an_init() -> None:
    for name in set(SERVICES) - {"migrate"}:
        service = SERVICES[name]
        is_watched_by_image = service["image"] == IMAGE and "HEALTHCHECK " in DOCKERFILE
        assert is_watched_by_image or service["healthcheck"]["test"], name
        assert (service["restart"], service["init"]) == ("unless-stopped", True), name


def test_no_log_grows_without_bound_and_no_traceback_is_logged_word_by_word() -> None:
    bounds = {name: set(service["logging"]["options"]) for name, service in SERVICES.items()}
    assert {name: given for name, given in bounds.items() if not given >= {"max-size", "max-file"}} == {}
    # Python writes it piece by piece, and Celery would log each piece: a thousand lines when the broker refuses beat.
    assert app.conf.worker_redirect_stdouts is False


def test_each_process_serves_its_queues_and_beat_leaves_no_pid_file_that_stops_the_next_one() -> None:
    limited = {key.removeprefix("queue:") for key in settings.DISPATCHER["keys"] if key.startswith("queue:")}
    assert {app.conf.task_default_queue, *limited} <= set(options_of("worker")["queues"])
    assert options_of("dispenser")["queues"] == [conf().dispenser_queue]
    assert not options_of("beat")["pidfile"]


def test_a_service_without_a_port_is_judged_by_the_file_that_it_touches() -> None:
    for name in ("worker", "dispenser", "beat"):
        assert "$$HEARTBEAT_FILE" in SERVICES[name]["healthcheck"]["test"][1], name
        assert SERVICES[name]["environment"]["HEARTBEAT_FILE"].startswith("/tmp/"), name  # noqa: S108


def test_what_runs_tasks_or_answers_requests_is_given_the_time_to_end_them() -> None:
    grace = {name: duration(SERVICES[name]["stop_grace_period"]) for name in ("worker", "dispenser", "web", "api")}
    assert grace["worker"] >= timedelta(minutes=10)
    assert grace["dispenser"] >= timedelta(minutes=1)
    assert LONGEST_WAIT < timedelta(seconds=serve.GRACE_S) < grace["api"] == grace["web"]


@pytest.mark.ojs
def test_requests_that_wait_for_a_job_and_the_admin_have_a_server_each() -> None:
    served = {"web": "/admin/", "api": "/ojs/v1/workers/fetch"}
    for service, serves in served.items():
        urls = SERVICES[service]["environment"]["ROOT_URLCONF"]
        assert resolve(serves, urls)
        (other,) = set(served.values()) - {serves}
        with pytest.raises(Resolver404):
            resolve(other, urls)


def test_the_web_servers_serve_the_application_on_their_published_port_to_this_machine_alone() -> None:
    for service in ("web", "api"):
        options = options_of(service)
        port = options["listen"].rpartition(":")[2]
        ((address, published),) = [mapping.split(":", 1) for mapping in SERVICES[service]["ports"]]
        assert (address, published.rpartition(":")[2]) == ("127.0.0.1", port), service
        assert f"EXPOSE {port}\n" in DOCKERFILE


def test_the_servers_keep_their_data_and_are_ready_only_when_they_listen_to_others() -> None:
    # While the image sets the database up, the server listens on its socket alone.
    assert [word for word in SERVICES["postgres"]["healthcheck"]["test"] if word.startswith("--host=")]
    # The name of RabbitMQ's directory has the host name in it, which is the container's id unless it is fixed.
    assert SERVICES["rabbitmq"]["hostname"]
    assert "rabbitmq:/var/lib/rabbitmq" in SERVICES["rabbitmq"]["volumes"]
    assert {"postgres", "rabbitmq"} <= set(COMPOSE["volumes"])


def test_the_role_of_the_project_is_not_the_superuser_of_the_server() -> None:
    server = SERVICES["postgres"]["environment"]
    role = server["APP_ROLE"]
    assert role != server.get("POSTGRES_USER", "postgres")
    assert {service["environment"]["DATABASE_URL"] for service in OURS.values()} == {
        f"postgresql://{role}@postgres:5432/{server['APP_DATABASE']}"
    }
    script = ROOT / "docker" / "postgres-init.sh"
    assert f"./docker/{script.name}:/docker-entrypoint-initdb.d/10-project.sh:ro" in SERVICES["postgres"]["volumes"]
    assert script.stat().st_mode & 0o111


def test_every_secret_is_a_file_and_given_only_where_it_is_read() -> None:
    for service in SERVICES.values():
        variables = service.get("environment", {})
        assert not [name for name in variables if re.search("PASSWORD$|SECRET_KEY$|PASS$", name)]
        files = {path for name, path in variables.items() if name.endswith("_FILE") and path.startswith("/run/")}
        read = {f"/run/secrets/{name}" for name in re.findall(r"/run/secrets/(\w+)", json.dumps(service))}
        assert files <= read
        assert read == {f"/run/secrets/{name}" for name in service.get("secrets", [])}
    used = {name for service in SERVICES.values() for name in service.get("secrets", [])}
    assert {name: f"./secrets/{name}" for name in used} == {
        name: source["file"] for name, source in COMPOSE["secrets"].items()
    }
    (made,) = re.findall(r"for name in ([\w ]+); do", (ROOT / "Makefile").read_text().split("\nsecrets:")[1])
    assert set(made.split()) == used
    assert "/secrets/\n" in (ROOT / ".gitignore").read_text()


def test_every_variable_is_documented() -> None:
    page = (ROOT / "docs" / "how-to" / "docker-compose.md").read_text()
    asked_for = set(re.findall(r"\$\{(\w+):-", (ROOT / "docker-compose.yml").read_text()))
    given = {name for service in OURS.values() for name in service["environment"]}
    assert "ALLOWED_HOSTS" in asked_for
    assert [name for name in sorted(asked_for | given) if f"`{name}`" not in page] == []


def test_no_container_has_privileges_or_writes_beside_its_volume() -> None:
    for name, service in SERVICES.items():
        assert (service["cap_drop"], service["read_only"]) == (["ALL"], True), name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert [each for each in service["tmpfs"] if each.split(":")[0] == "/tmp"], name  # noqa: S108
        assert service["image"] == IMAGE or service["user"] not in {"root", "0"}, name
        assert not {"cap_add", "privileged", "pid", "network_mode"} & set(service), name


def test_with_a_broker_each_process_is_given_its_address() -> None:
    addresses = {service["environment"]["BROKER_ADDRESS"] for service in OURS.values()}
    assert addresses == {"${BROKER_ADDRESS:-memory://}"}
    page = (ROOT / "docs" / "how-to" / "docker-compose.md").read_text()
    user = SERVICES["rabbitmq"]["environment"]["RABBITMQ_DEFAULT_USER"]
    assert f"COMPOSE_PROFILES=broker\nBROKER_ADDRESS=amqp://{user}@rabbitmq:5672//\n" in page


def test_no_image_changes_by_itself_and_ours_runs_as_an_unprivileged_user() -> None:
    assert re.search(r"^FROM python:3\.\d+\.\d+\S*@sha256:[0-9a-f]{64}$", DOCKERFILE, re.MULTILINE)
    for name in ("postgres", "rabbitmq"):
        assert re.fullmatch(r"\w+:\d+(\.\d+)+", SERVICES[name]["image"])
    (user,) = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert int(user) > 0


def test_the_image_is_built_of_what_is_there() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    for source in re.findall(r"^COPY (\S+) ", DOCKERFILE, re.MULTILINE):
        assert (ROOT / source).exists()
        assert f"!{source}" in ignore
    for left_out in (line for line in ignore if line.startswith("project/")):
        assert (ROOT / left_out).exists()
