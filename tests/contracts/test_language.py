"""Names, docstrings, comments and pages use the field's words: no archaic or private ones."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.contracts.source import ROOT

WORD = re.compile(
    r"(?<![a-z])(?:told|tells?|telling|mend(?:s|ed|ing|er)?|anew|lest|whoever|whereof|thereof|hath|nobody|besides"
    r"|forsaken?|patiently|hearken|hears?|heard|happenings?|stories|theatre|backstage|doings|moods|save of|so long as"
    r")(?![a-z])",
    re.IGNORECASE,
)
ANYWHERE = re.compile(re.sub(r"\(\?<?!\[a-z\]\)", "", WORD.pattern), re.IGNORECASE)
"""The same, wherever they are: a file that has none of them need not be read word by word."""
FOLDERS = ("dispatcher", "docs", "tests", "bench", "trials", "project", "examples")
KINDS = {".py", ".sql", ".html", ".mjs", ".md"}
ALLOWED = {
    "tests/contracts/test_language.py",
    "tests/steps/test_throttles.py",
    "tests/edges/test_faults.py",
    "tests/ojs/test_access.py",
}
"""The words as data: of this test, of migrations, and the user of the image and of addresses."""


def paths() -> list[Path]:
    """Return the files that people write; migrations are generated, and named by tests."""
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*")) if path.suffix in KINDS]
    written = [path for path in found if "migrations" not in path.parts and str(path.relative_to(ROOT)) not in ALLOWED]
    return [*written, ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def texts(source: str, suffix: str) -> Iterator[tuple[int, str]]:
    """Return what people read in a file with its line: of Python names, comments and strings, of all else each line."""
    if suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            yield token.start[0], re.sub(r"(?<=[a-z])(?=[A-Z])", " ", token.string).replace("_", " ")
        elif token.type in {tokenize.COMMENT, tokenize.STRING} or tokenize.tok_name[token.type].startswith("FSTRING"):
            yield token.start[0], token.string.replace("_", " ")


def banned(source: str, suffix: str) -> list[tuple[int, str]]:
    """Return the banned words of a file, each with the line where its text begins."""
    if not ANYWHERE.search(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", source)):
        return []
    return [(line, found[0].lower()) for line, text in texts(source, suffix) for found in WORD.finditer(text)]


def test_a_file_uses_the_words_of_its_field() -> None:
    checked = paths()
    assert len(checked) > 500
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: use another word than {word!r}"
        for path in checked
        for line, word in banned(path.read_text(), path.suffix)
    ]
    assert not offenders, "\n".join(offenders)


def test_a_banned_word_is_found_and_one_that_contains_it_is_allowed() -> None:
    assert banned("told_at = 1\n", ".py") == [(1, "told")]
    assert banned("class Mender: ...\ndef whoTells(): ...\n", ".py") == [(1, "mender"), (2, "tells")]
    assert banned('"""It waits so long as a key is locked."""\n', ".py") == [(1, "so long as")]
    assert banned('x = 1  # Nobody waits.\nmessage = f"mended {x}"\n', ".py") == [(1, "nobody"), (2, "mended")]
    assert banned("--\n-- who: whoever holds it.\n", ".sql") == [(2, "whoever")]
    assert banned("| **call** | Begins anew. |\n", ".md") == [(1, "anew")]
    assert banned("amend_call = recommended = intelligent = 'a commendation, the latest'  # amend\n", ".py") == []
