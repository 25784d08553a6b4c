"""The files that the contracts read, and how they name a place in one: a rule is one test with a list of offenders."""

import ast
import re
import textwrap
from functools import cache
from pathlib import Path

from django.apps import apps

import dispatcher

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(dispatcher.__file__).resolve().parent
NOT_INSTALLED = {"migrations", *(() if apps.is_installed("dispatcher.ojs") else ("ojs",))}
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if not NOT_INSTALLED & {*path.relative_to(PACKAGE).parts}]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def place(path: Path, text: str = "", offset: int = 0) -> str:
    """Return where something is: the path, and the line that has this offset of its text."""
    return f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, offset) + 1}"


@cache
def tree(module: Path) -> ast.Module:
    """Return the syntax of a module."""
    return ast.parse(module.read_text())


def blocks(text: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(body) for _, body in found]
