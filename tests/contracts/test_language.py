"""Names, docstrings, comments and pages use the field's words: no archaic or private ones."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BANNED = re.compile(
    r"told|tells?|telling|mend(?:s|ed|ing|er)?|anew|lest|whoever|whereof|thereof|hath|nobody|besides|forsaken?|patiently"
    r"|hearken|hears?|heard|happenings?|stories|theatre|backstage|doings|moods|save of|so long as",
    re.IGNORECASE,
)
WORD = re.compile(rf"(?<![a-z])(?:{BANNED.pattern})(?![a-z])", re.IGNORECASE)

NOT_YET: set[str] = set()
"""Paths that still have such words. Remove a path once it is clean; a clean path in this set fails."""
ALLOWED = {
    "tests/contracts/test_language.py",
    "tests/steps/test_throttles.py",
    "tests/edges/test_faults.py",
    "tests/ojs/test_access.py",
}
"""The words as data: of this test, of migrations, and the user of the image and of addresses."""


def written(path: Path) -> list[Path]:
    """Return the files under a path that people write; migrations are generated, and named by tests."""
    found = [each for each in sorted(path.rglob("*")) if each.suffix in {".py", ".sql", ".html", ".mjs", ".md"}]
    return [each for each in found if "migrations" not in each.parts and str(each.relative_to(ROOT)) not in ALLOWED]


FOLDERS = ("dispatcher", "docs", "tests", "bench", "trials", "project", "examples")
PATHS = [*(path for folder in FOLDERS for path in written(ROOT / folder)), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def texts(source: str, suffix: str) -> Iterator[str]:
    """Return what people read in a file: of Python its names, comments and strings, of all else each line."""
    if suffix != ".py":
        yield from source.splitlines()
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield re.sub(r"(?<=[a-z])(?=[A-Z])", " ", token.string).replace("_", " ")
        elif token.type in {tokenize.COMMENT, tokenize.STRING} or tokenize.tok_name[token.type].startswith("FSTRING"):
            yield token.string.replace("_", " ")


def banned(source: str, suffix: str) -> list[str]:
    """Return the banned words of a file."""
    return [found[0].lower() for text in texts(source, suffix) for found in WORD.finditer(text)]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_uses_the_words_of_its_field(path: Path) -> None:
    found = banned(path.read_text(), path.suffix)
    if str(path.relative_to(ROOT)) in NOT_YET:
        assert found, "it is clean: remove it from NOT_YET"
    else:
        assert found == []


def test_every_path_that_is_not_done_exists() -> None:
    assert {path for path in NOT_YET if not (ROOT / path).exists()} == set()


@pytest.mark.parametrize(
    ("source", "suffix", "word"),
    [
        ("told_at = 1\n", ".py", "told"),
        ("class Mender: ...\n", ".py", "mender"),
        ("def whoTells(): ...\n", ".py", "tells"),
        ('"""It waits so long as a key is locked."""\n', ".py", "so long as"),
        ("x = 1  # Nobody waits.\n", ".py", "nobody"),
        ('message = f"mended {x}"\n', ".py", "mended"),
        ("-- who: whoever holds it.\n", ".sql", "whoever"),
        ("| **call** | Begins anew. |\n", ".md", "anew"),
    ],
)
def test_a_banned_word_is_found(source: str, suffix: str, word: str) -> None:
    assert banned(source, suffix) == [word]


def test_words_that_contain_a_banned_one_are_allowed() -> None:
    assert banned("amend_call = recommended = intelligent = 'a commendation, the latest'  # amend\n", ".py") == []
