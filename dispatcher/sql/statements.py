"""The text of each statement: one a file, in a folder for each step; what several share is a fragment.

An app adds the folders of its own (see `add`); names are unique over all of them.

`{{name}}` or `{{name(argument, ...)}}` stands for the text of `fragments/name.sql`, in which `{{parameter}}` stands for
the argument. `{{@name}}` stands for the installed name of a function (see functions.py). The text of a fragment is SQL
of the project itself: no value ever goes into it.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, LiteralString

from dispatcher.sql.functions import FOLDER, installed_name

FRAGMENTS: Final = "fragments"
"""The folder of the fragments; each other folder holds the statements of one step."""

_roots = [Path(__file__).parent]

_PARAMETER = re.compile(r"%\((\w+)\)s")
_FRAGMENT = re.compile(r"\{\{(\w+)(?:\(((?:[^{}]|\{\{\w+\}\})*)\))?\}\}")
_FUNCTION = re.compile(r"\{\{@(\w+)\}\}")
_SIGNATURE = re.compile(r"-- (\w+)(?:\(([\w, ]+)\))?: ")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as the server takes it, with `$1`, `$2`, ... for its parameters; or a fragment, with their names."""

    text: LiteralString
    parameters: tuple[str, ...]
    """The name of each parameter, in order of number."""


def add(root: Path) -> None:
    """Add the statements and fragments of an app, in the folders of this one."""
    if root not in _roots:
        _roots.append(root)
        for cached in (statement, fragments, _files):
            cached.cache_clear()


def roots() -> tuple[Path, ...]:
    """Return where the folders of statements are: those of the core, and those of apps."""
    return tuple(_roots)


@cache
def statement(name: str) -> Statement:
    """Return `name`.sql without comments and indents, its fragments expanded, its name in front as a comment.

    Numbered here, once: psycopg would parse a text of over 4,096 characters again at each run.
    """
    text = expand(_code(_files()[name]))
    numbers = {parameter: f"${number}" for number, parameter in enumerate(dict.fromkeys(_PARAMETER.findall(text)), 1)}
    numbered = _PARAMETER.sub(lambda found: numbers[found[1]], text).replace("%%", "%")
    return Statement(text=f"/* {name} */ {numbered}", parameters=tuple(numbers))


def names() -> list[str]:
    """Return the name of every statement."""
    return sorted(_files())


def expand(text: LiteralString) -> LiteralString:
    """Return a text with its fragments and functions replaced by what they stand for; KeyError for an unknown one."""
    expanded = _FRAGMENT.sub(lambda found: _expanded(found[1], found[2]), text)
    return _FUNCTION.sub(lambda found: installed_name(found[1]), expanded)


def used(text: str) -> set[str]:
    """Return the names of the fragments that a text uses by itself."""
    return set(re.findall(r"\{\{(\w+)", text))


@cache
def fragments() -> dict[str, Statement]:
    """Return every fragment by its name."""
    return {
        file.stem: Statement(text=_code(file), parameters=_parameters(file))
        for file in _entries()
        if file.parent.name == FRAGMENTS
    }


def _expanded(name: str, arguments: str | None) -> LiteralString:
    fragment = fragments()[name]
    given = [argument.strip() for argument in arguments.split(",")] if arguments else []
    values = dict(zip(fragment.parameters, given, strict=True))
    text = re.sub(r"\{\{(\w+)\}\}", lambda found: values.get(found[1], found[0]), fragment.text)
    return expand(text)


def _parameters(file: Path) -> tuple[str, ...]:
    found = _SIGNATURE.match(file.read_text("utf-8"))
    return tuple(found[2].split(", ")) if found and found[2] else ()


def _code(file: Path) -> LiteralString:
    lines = file.read_text("utf-8").splitlines()
    return " ".join(line.strip() for line in lines if not line.lstrip().startswith("--"))


@cache
def _files() -> dict[str, Path]:
    """Return the file of each statement by its name, which is unique; each step has a folder."""
    return {file.stem: file for file in _entries() if file.parent.name != FRAGMENTS}


def _entries() -> Iterator[Path]:
    """Yield every file of statements and fragments."""
    for root in _roots:
        yield from (file for file in root.glob("*/*.sql") if file.parent != FOLDER)
