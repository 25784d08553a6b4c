"""What came of the cases, as the page docs/conformance.md."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

SUITES: Final = Path(__file__).parents[2] / "conformance" / "suites"



@dataclass(frozen=True, kw_only=True)
class Flaw:
    """What is the matter with a case, and what the runner says of it: a failure in other words is the server's."""

    why: str
    says: re.Pattern[str]


_CAPTURE = Flaw(
    why="uses `capture`, which the runner does not know: the text `{{job_id}}` goes out as it stands",
    says=re.compile(r"got (404|null)$"),
)
_MATCHER = Flaw(
    why="has a lone matcher (`$type` or `$gte`), which the runner compares as an ordinary object",
    says=re.compile(r'expected \{"\$'),
)
_HISTORY = Flaw(
    why="expects error types that no request of the case contains", says=re.compile(r"\.errors\[\d\]\.type: expected")
)
EXPLAINED: Final = {
    "EXT-ADM-001": _MATCHER,
    "EXT-ADM-002": _MATCHER,
    "EXT-ADM-004": _CAPTURE,
    "EXT-ADM-005": _MATCHER,
    "EXT-DLQ-001": _MATCHER,
    "EXT-DLQ-002": _MATCHER,
    "EXT-DLQ-003": _CAPTURE,
    "EXT-DLQ-004": _CAPTURE,
    "EXT-RL-003": _CAPTURE,
    "L1-RTR-014": _HISTORY,
}
"""Cases that no honest server passes, and what is the matter with each."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case: what it belongs to, whether it passed, and what the runner said if it did not."""

    test_id: str
    name: str
    folder: str
    category: str
    has_passed: bool
    said: Sequence[str] = ()
    is_hooked: bool = False
    """Whether the test server plays the administrator whom the case wants: no client can do what it asks for."""

    @property
    def why(self) -> str:
        """Return what a failure rests on, if that is the case's own flaw."""
        flaw = EXPLAINED.get(self.test_id)
        return flaw.why if flaw and self.said and all(flaw.says.search(words) for words in self.said) else ""


def read(report: Path, suites: Path) -> list[Case]:
    """Return the cases of a report."""
    results = json.loads(report.read_text())["results"] if report.exists() else []
    folders = {_key(path): path.relative_to(suites).parts for path in suites.rglob("*.json")}
    hooked = {_key(path) for path in suites.rglob("*.json") if "test_directive" in path.read_text()}
    found = []
    for result in results:
        parts = folders.get((result["test_id"], result.get("name")), ("cases", result.get("category", "")))
        category = parts[1] if len(parts) > 2 else ""  # noqa: PLR2004 -- folder, category, file
        has_passed = result["status"] == "pass"
        name = str(result.get("name", ""))
        said = [failure["message"] for failure in result.get("failures") or []]
        number, folder = result["test_id"], parts[0]
        case = Case(test_id=number, name=name, folder=folder, category=category, has_passed=has_passed, said=said)
        found.append(replace(case, is_hooked=(number, name) in hooked))
    return found


def page(cases: list[Case]) -> str:
    """Write the page."""
    rows: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in cases:
        rows[case.folder, case.category].append(case)
    lines = [
        "# Conformance",
        "",
        "What a live server did with the public cases of the Open Job Spec that are in `conformance/suites`.",
        "This page is written by `make conformance`; do not edit it.",
        "",
        "| level or extension | category | passed | of |",
        "|---|---|---|---|",
    ]
    for (folder, category), found in sorted(rows.items()):
        passed = sum(case.has_passed for case in found)
        lines.append(f"| {folder} | {category} | {passed} | {len(found)} |")
    passed = sum(case.has_passed for case in cases)
    lines += [f"| **all** | | **{passed}** | **{len(cases)}** |", ""]
    failed = [case for case in cases if not case.has_passed]
    if failed:
        lines += ["## Not passed", "", "| case | name | why |", "|---|---|---|"]
        lines += [f"| {case.test_id} | {case.name} | {case.why or 'a fault of the server'} |" for case in failed]
        lines += [""]
    if hooked := [f"{case.test_id} ({case.name})" for case in cases if case.has_passed and case.is_hooked]:
        lines += [
            f"Passed by a hook of the test server alone, which plays the administrator (`test_directive`): {', '.join(hooked)}.",
            "",
        ]
    lines += [
        "The manifest claims level 2: no case of level 3, workflows, is among these, and levels build on each other. What is",
        "there of levels 3 and 4 is in the manifest's capabilities.",
        "",
    ]
    return "\n".join(lines)


def _key(path: Path) -> tuple[str, str]:
    case = json.loads(path.read_text())
    return case.get("test_id", ""), case.get("name", "")
