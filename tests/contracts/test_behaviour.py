"""The behaviour suite states rules: it uses public modules of the dispatcher, and nothing of the engine's inside."""

import ast
from collections.abc import Iterator
from pathlib import Path

SUITE = Path(__file__).parents[1] / "behaviour"
PUBLIC = {"dispatcher.api", "dispatcher.errors", "dispatcher.models", "dispatcher.states"}


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Give the modules of the dispatcher that a module imports, each with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                yield from ((node.lineno, alias.name) for alias in node.names)
            case ast.ImportFrom(module="dispatcher"):
                yield from ((node.lineno, f"dispatcher.{alias.name}") for alias in node.names)
            case ast.ImportFrom(module=str(module)):
                yield node.lineno, module


def test_behaviour_tests_import_public_modules_of_the_dispatcher_only() -> None:
    files = sorted(SUITE.rglob("*.py"))
    offenders = [
        f"{path.name}:{line}: {module} (use a verb of tests/drive.py)"
        for path in files
        for line, module in imported(ast.parse(path.read_text()))
        if module.split(".")[0] == "dispatcher" and module not in PUBLIC
    ]
    assert files
    assert not offenders, "\n".join(offenders)


def test_behaviour_tests_name_nothing_of_the_engine_as_text() -> None:
    """Patches by a path, and statements over tables of the mechanism, would tie a rule to today's inside."""
    inside = ("dispatcher.engine", "dispatcher.lifecycle", "dispatcher.sql", "dispatcher_lane", "dispatcher_window")
    offenders = [
        f"{path.name}: {name}" for path in sorted(SUITE.rglob("*.py")) for name in inside if name in path.read_text()
    ]
    assert not offenders, "\n".join(offenders)
