"""The functions of the database: one a file in functions/, its types before it; all are installed by a migration.

A file may have types only, those that several functions share.

In a text `@name` stands for the installed name of a function or a type, `dispatcher_<name>_<version>`. The version is a
hash of all texts, so code finds the functions that it was written with, beside those of the release before and after.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from hashlib import sha256
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).with_suffix("")

_NAME = re.compile(r"(?<![\w@<])@([a-z]\w*)")
_CREATE = re.compile(r"^CREATE (FUNCTION|TYPE) @?(\w+)", re.MULTILINE)
_DIGITS = 8


@dataclass(frozen=True)
class Definition:
    """A function or a type."""

    kind: str
    """FUNCTION or TYPE."""
    name: str
    text: str
    """What creates it; of a function, also what it revokes."""


@cache
def version(folder: Path = FOLDER) -> str:
    """Return the hash of all texts; a comment, an empty line or an indent is no part of it."""
    lines = [line.strip() for text in _texts(folder).values() for line in text.splitlines()]
    return sha256("\n".join(lines).encode()).hexdigest()[:_DIGITS]


def installed_name(name: str, folder: Path = FOLDER) -> str:
    """Return the name in the database; KeyError for one that no file defines."""
    if name not in _files(folder):
        message = f"@{name}: no file of {folder} defines it"
        raise KeyError(message)
    return f"dispatcher_{name}_{version(folder)}"


def installed_names(folder: Path = FOLDER) -> list[str]:
    """Return the names in the database of all functions and types."""
    return sorted(installed_name(name, folder) for name in _files(folder))


def ddl(folder: Path = FOLDER) -> str:
    """Return what creates all of them under their installed names, each after those that it names."""
    texts, files = _texts(folder), _files(folder)
    # Sorted, so that the order is the same in every process.
    needed = {
        file: sorted({files[name] for name in used(text) & files.keys()} - {file}) for file, text in texts.items()
    }
    named = (_NAME.sub(lambda found: installed_name(found[1], folder), text) for text in texts.values())
    ready = dict(zip(texts, named, strict=True))
    made = [each for file in TopologicalSorter(needed).static_order() for each in definitions(ready[file])]
    return "\n".join(f"{each.text}{_revoked(each)}\n" for each in made)


def definitions(text: str) -> Iterator[Definition]:
    """Yield what a text defines, in order; each begins a line with CREATE."""
    starts = [*_CREATE.finditer(text)]
    for found, end in zip(starts, [*(each.start() for each in starts[1:]), len(text)], strict=True):
        yield Definition(kind=found[1], name=found[2], text=text[found.start() : end].strip())


def used(text: str) -> set[str]:
    """Return the names for which a text has `@name`."""
    return set(_NAME.findall(text))


def _revoked(made: Definition) -> str:
    return f"\nREVOKE EXECUTE ON FUNCTION {made.name} FROM PUBLIC;" if made.kind == "FUNCTION" else ""


@cache
def _texts(folder: Path) -> dict[str, str]:
    """Return the text of each file by its name, without comments and empty lines."""
    return {file.stem: _code(file.read_text("utf-8")) for file in sorted(folder.glob("*.sql"))}


@cache
def _files(folder: Path) -> dict[str, str]:
    """Return the file that defines a name."""
    return {made.name: file for file, text in _texts(folder).items() for made in definitions(text)}


def _code(text: str) -> str:
    lines = (line.partition("--")[0].rstrip() for line in text.splitlines())
    return "\n".join(line for line in lines if line)
