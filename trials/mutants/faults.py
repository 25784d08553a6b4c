"""The faults: what each breaks, where it is planted, and which tests are to catch it."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

FAULTS = Path(__file__).with_name("faults.toml")


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One text of a file that a fault replaces by another."""

    file: str
    old: str
    new: str

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Self:
        """Read it from the list."""
        return cls(file=f"dispatcher/{given['file']}", old=given["old"], new=given["new"])


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A fault: a rule, broken in one place."""

    name: str
    """The rule, and the place: `priority-ignored/choose`."""
    edits: Sequence[Edit]
    tests: Sequence[str]
    """The files that state the rule, below `tests/`."""
    explained: str | None
    """Why no test can catch it, if none can."""

    @property
    def rule(self) -> str:
        """The rule that it breaks."""
        return self.name.partition("/")[0]

    @property
    def is_code(self) -> bool:
        """Whether it changes Python, which a process reads when it starts; else statements."""
        return any(edit.file.endswith(".py") for edit in self.edits)

    def misplaced(self, tree: Path) -> list[str]:
        """Return which of its texts are not in the tree exactly once."""
        found = [(edit, (tree / edit.file).read_text().count(edit.old)) for edit in self.edits]
        return [f"{self.name}: found {count} times in {edit.file}: {edit.old}" for edit, count in found if count != 1]

    def plant(self, tree: Path) -> dict[Path, str]:
        """Change the files of a tree; return what they were."""
        before = {path: path.read_text() for path in {tree / edit.file for edit in self.edits}}
        for edit in self.edits:
            path = tree / edit.file
            path.write_text(path.read_text().replace(edit.old, edit.new))
        return before


def read(path: Path = FAULTS) -> list[Fault]:
    """Read the list."""
    return [fault for rule, entry in tomllib.loads(path.read_text()).items() for fault in _of_rule(rule, entry)]


def _of_rule(rule: str, entry: Mapping[str, Any]) -> Iterator[Fault]:
    for place, given in entry.items():
        if place != "tests":
            edits = given if isinstance(given, list) else [given]
            yield Fault(
                name=f"{rule}/{place}",
                edits=[Edit.read(edit) for edit in edits],
                tests=entry["tests"],
                explained=edits[0].get("explained"),
            )
