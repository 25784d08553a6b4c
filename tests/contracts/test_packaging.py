"""What pyproject.toml asks for, what the requirements pin and what the Makefile calls are the same."""

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def requirements(lines: list[str]) -> Iterator[Requirement]:
    return (Requirement(line) for line in lines if line and not line.startswith(("#", "-")))


def pins(name: str) -> dict[str, str]:
    """Return the version that a requirements file pins, by the canonical name of the package."""
    found: dict[str, str] = {}
    for requirement in requirements((ROOT / name).read_text().splitlines()):
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", f"{requirement} is not pinned"
        found[canonicalize_name(requirement.name)] = specifier.version
    return found


def test_the_pins_are_versions_that_the_package_accepts() -> None:
    project = PYPROJECT["project"]
    extras = [line for extra in project["optional-dependencies"].values() for line in extra]
    pinned = pins("requirements.txt")
    for requirement in requirements([*project["dependencies"], *extras]):
        assert pinned[canonicalize_name(requirement.name)] in requirement.specifier


def test_the_development_group_and_its_requirements_agree() -> None:
    pinned = pins("requirements-dev.txt")
    for requirement in requirements(PYPROJECT["dependency-groups"]["dev"]):
        assert f"=={pinned[canonicalize_name(requirement.name)]}" == str(requirement.specifier)


def test_no_package_is_pinned_twice() -> None:
    assert not set(pins("requirements.txt")) & set(pins("requirements-dev.txt"))


def test_every_module_that_the_makefile_runs_exists() -> None:
    modules = set(re.findall(r"python -m ([\w.]+)", (ROOT / "Makefile").read_text()))
    assert {"project.demo", "project.run", "bench"} <= modules
    assert [module for module in modules if importlib.util.find_spec(module) is None] == []
