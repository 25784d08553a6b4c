"""The guides for tools, AGENTS.md and docs/llms.txt: what they link to, name and have run exists."""

import re
from operator import attrgetter
from pathlib import Path

import pytest
from django.core.management import get_commands

from dispatcher import errors, models
from tests.contracts.source import ROOT

pytestmark = pytest.mark.django

AGENTS, LLMS = ROOT / "AGENTS.md", ROOT / "docs" / "llms.txt"
both = pytest.mark.parametrize("guide", [AGENTS, LLMS], ids=["AGENTS.md", "llms.txt"])


def code(guide: Path) -> list[str]:
    """Return what a guide writes as code."""
    return re.findall(r"`([^`\n]+)`", guide.read_text())


@both
def test_every_link_of_a_guide_leads_to_a_file(guide: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)", guide.read_text())
    assert len(targets) >= 3
    assert [each for each in targets if not (guide.parent / each).is_file()] == []


def test_every_path_that_the_guide_of_contributors_names_exists() -> None:
    paths = {text for text in code(AGENTS) if re.fullmatch(r"\w[\w/.-]*/(?:[\w-]+\.py)?", text)}
    assert len(paths) > 20
    assert {path for path in paths if not (ROOT / path).exists()} == set()


@both
def test_every_command_that_a_guide_names_exists(guide: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = {"make": targets, "manage.py": set(get_commands())}
    named = [found for text in code(guide) for found in re.findall(r"(make|manage\.py) ([\w-]+)", text)]
    assert len(named) >= 4
    assert [(kind, name) for kind, name in named if name not in commands[kind]] == []


def test_the_guide_of_contributors_names_every_part_of_the_package() -> None:
    parts = {path.name for path in (ROOT / "dispatcher").iterdir() if (path / "__init__.py").exists()}
    helping = {"event_log", "lanes", "messages", "migrations", "models"}
    assert {part for part in parts - helping if f"`dispatcher/{part}/`" not in AGENTS.read_text()} == set()


def test_what_the_guide_of_users_calls_and_raises_exists() -> None:
    named = [found for text in code(LLMS) for found in re.findall(r"(?:raise )?[A-Z][A-Za-z]+[\w.]*(?=\()", text)]
    assert len(named) >= 2
    for name in named:
        owner, attributes = (errors, name.removeprefix("raise ")) if name.startswith("raise ") else (models, name)
        assert attrgetter(attributes)(owner)
