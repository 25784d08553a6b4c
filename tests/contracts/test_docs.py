"""The documentation says what the code does, where a test can check it."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from pytest_django import Settings

from dispatcher.conf import RETENTION, Conf, conf, settable
from dispatcher.limits.retry import Retry
from dispatcher.states import diagram
from tests.contracts.source import PAGES, ROOT, blocks, place

pytestmark = pytest.mark.django

REFERENCE = ROOT / "docs" / "reference"
NAVIGATION = (ROOT / "mkdocs.yml").read_text().split("\nnav:\n")[1]
ADDED = ("overview.md", "contributing.md", "changelog.md")
"""Pages of the site that docs/tools/hooks.py makes of the root's files."""


def rows(text: str) -> Iterable[tuple[str, str]]:
    """Return the first two cells of every table row whose first cell is code."""
    return re.findall(r"^\| `([^`]+)` \| (.*?) \|", text, re.MULTILINE)


def section(text: str, heading: str) -> str:
    """Return the text under a heading of the second level."""
    return text.split(f"\n## {heading}\n")[1].split("\n## ", maxsplit=1)[0]


def anchors(path: Path) -> set[str]:
    """Return the names under which the headings of a page can be linked to."""
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_diagram_of_states_is_the_one_that_the_code_draws() -> None:
    (drawn,) = blocks((REFERENCE / "states.md").read_text(), "mermaid")
    assert drawn == diagram(), "put the output of `python -m dispatcher.states` into docs/reference/states.md"


def test_the_defaults_of_the_settings_are_the_documented_ones(settings: Settings) -> None:
    text = (REFERENCE / "settings.md").read_text()
    headings = ("What you are likely to set", "What rarely needs a change")
    documented = {name: value for heading in headings for name, value in rows(section(text, heading))}
    settings.DISPATCHER = {name: ast.literal_eval(value.strip("`")) for name, value in documented.items()}
    assert documented.keys() == settable().keys()
    assert conf() == Conf()


def test_the_defaults_of_retries_and_retention_are_the_documented_ones() -> None:
    text = (REFERENCE / "settings.md").read_text()
    retry = {name: ast.literal_eval(value.strip("`")) for name, value in rows(section(text, "retry"))}
    retention = {name: f"{kept.days} days" for name, kept in RETENTION.items() if kept is not None}
    assert retry == Retry().as_json()
    assert dict(rows(section(text, "retention"))) == retention


def test_every_link_leads_somewhere() -> None:
    offenders = []
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(r"\]\((?!https?://)([^)#]*)(?:#([^)]+))?\)", text):
            target, anchor = found[1], found[2]
            path = (page.parent / target).resolve() if target else page
            if not path.exists():
                offenders.append(f"{place(page, text, found.start())}: {target} is not there")
            elif anchor and anchor not in anchors(path):
                offenders.append(f"{place(page, text, found.start())}: {target} has no heading {anchor}")
    assert not offenders, "\n".join(offenders)


def test_every_row_of_a_table_is_below_its_head() -> None:
    torn = re.compile(r"\n(?!\|).*\n(\|.*\|)\n(?!\|[ :|-]+\|\n)")
    texts = {page: page.read_text() for page in PAGES}
    assert [place(page, text, row.start(1)) for page, text in texts.items() for row in torn.finditer(text)] == []


def test_every_piece_of_python_is_python() -> None:
    for page in PAGES:
        for block in blocks(page.read_text(), "python"):
            compile(block, str(page), "exec", ast.PyCF_ONLY_AST)


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {(name, place(page)) for page in PAGES for name in re.findall(r"`make ([a-z0-9-]+)", page.read_text())}
    assert [each for each in sorted(named) if each[0] not in targets] == []


def test_every_path_that_contributing_names_exists() -> None:
    named = set(re.findall(r"`((?:dispatcher|tests|docs)/[\w./-]*)`", (ROOT / "CONTRIBUTING.md").read_text()))
    assert len(named) > 30
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_every_page_is_listed_in_the_index_and_in_the_navigation() -> None:
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    index = (ROOT / "docs" / "README.md").read_text()
    listed = {Path(target) for target in re.findall(r"\]\(([^):#]+\.md)[)#]", index)}
    assert pages - listed == {Path("README.md")}
    navigation = {
        Path(target) for target in re.findall(r"^ +- (?:[\w ]+: )?([\w/.-]+\.md)\b", NAVIGATION, re.MULTILINE)
    }
    assert pages - navigation == set()
    assert {str(page) for page in navigation - pages} == set(ADDED)


def test_the_glossary_is_in_order() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert terms == sorted(set(terms))


def test_images_are_small_and_shown() -> None:
    text = "".join(path.read_text() for path in PAGES)
    for image in (ROOT / "docs" / "images").iterdir():
        assert image.stat().st_size < 200_000, f"{image.name} is larger than 200 KB"
        assert f"images/{image.name})" in text, f"no page shows {image.name}"


@pytest.mark.parametrize(
    ("name", "begin", "end", "least"),
    [
        ("explanation/guarantees.md", "## Always", "## What is not", 20),
        ("how-to/direct-delivery.md", "## What s", "## C", 10),
    ],
)
def test_every_promise_names_the_test_that_shows_it(name: str, begin: str, end: str, least: int) -> None:
    page = ROOT / "docs" / name
    text = page.read_text()
    promised = re.findall(
        r"^\| (?!what|fault|Fault|Celery \|)(.*) \|$", text[text.index(begin) : text.index(end)], re.MULTILINE
    )
    assert len(promised) > least
    for line in promised:
        link = re.search(r"\]\(([^)]+\.py)\) `(test_\w+)`$", line)
        assert link, f"no test is named: {line}"
        assert f"def {link[2]}(" in (page.parent / link[1]).read_text(), f"{link[1]} has no {link[2]}"


def test_both_benchmarks_have_a_target_of_make_and_a_page() -> None:
    makefile = (ROOT / "Makefile").read_text()
    benchmarks = (ROOT / "docs" / "explanation" / "benchmarks.md").read_text()
    for target, module in (("bench", "bench"), ("bench-scale", "bench.scale")):
        assert re.search(
            rf"^{target}:.*## .*\n\t@\$\(BIN\)/python -m {re.escape(module)} ?(\$\(ARGS\))?$", makefile, re.MULTILINE
        )
        assert f"`make {target}" in benchmarks
        assert f"`python -m {module} --quick" in benchmarks
    assert "`make bench-scale ARGS=--quick`" in benchmarks
    assert ".run/scale.json" in benchmarks


def test_what_it_costs_rounds_the_figures_of_the_table() -> None:
    explanation = ROOT / "docs" / "explanation"
    table = (explanation / "benchmarks.md").read_text()
    page = " ".join((explanation / "what-it-costs.md").read_text().split())
    for name, column, phrase in (
        ("transactions a call, whole system, end to end", 0, "| transactions of the whole system | {} |"),
        ("transactions a call, whole system, drain", 0, "| {} | | CPU of PostgreSQL, ms |"),
        ("CPU of PostgreSQL a call, end to end", 0, "| CPU of PostgreSQL, ms | {} |"),
        ("CPU of PostgreSQL a call, drain", 0, "| {} | | dead rows"),
        ("dead rows a call, end to end", 0, "(row versions that a vacuum removes) | {} |"),
        ("WAL a call, end to end", 0, "| WAL, kB | {} |"),
        ("trips of a call under a throttle", 0, "such a call takes {} transactions"),
        ("CPU of PostgreSQL of a call under a throttle", 0, "transactions and {} ms of CPU"),
        ("calls per second and core of PostgreSQL", 0, "does about {} calls a second"),
        ("CPU of an idle worker", 0, "| {} ms a second |"),
        ("end to end under a limit / bare Celery, prefetch 4", 1, "| end to end | {} |"),
        ("drain under a limit / bare Celery, prefetch 4", 1, "| drain of a backlog | {} |"),
        ("broker: end to end under a limit", 1, "| end to end through the broker | {} |"),
    ):
        figures = r"([\d.,]+) \| [\d.,]+ \| \S* \| ([\d.,]+)"
        row = re.search(rf"^\| {re.escape(name)}.*? \| {figures} \|", table, re.MULTILINE)
        assert row, name
        rounded = float(f"{float(row[1 + column].replace(',', '')):.2g}")
        assert phrase.format(f"{rounded:g}") in page, f"{name}: {rounded:g}"
