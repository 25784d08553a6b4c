"""What came of the cases, as the page docs/conformance.md."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SUITES: Final = Path(__file__).parents[2] / "conformance" / "suites"

_CAPTURE = "uses `capture`, which the runner does not know: the text `{{job_id}}` goes out as it stands"
_MATCHER = "has a lone matcher (`$type` or `$gte`), which the runner compares as an ordinary object"
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
    "L1-RTR-014": "expects error types that no request of the case contains",
}
"""Cases that no honest server passes, and what is the matter with each."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case: what it belongs to, and whether it passed; `why`: what a failure rests on, if that is the case's."""

    test_id: str
    name: str
    folder: str
    category: str
    has_passed: bool

    @property
    def why(self) -> str:
        """Return what is the matter with the case itself, if anything is."""
        return EXPLAINED.get(self.test_id, "")


def read(report: Path, suites: Path) -> list[Case]:
    """Return the cases of a report."""
    results = json.loads(report.read_text())["results"] if report.exists() else []
    folders = {_key(path): path.relative_to(suites).parts for path in suites.rglob("*.json")}
    found = []
    for result in results:
        parts = folders.get((result["test_id"], result.get("name")), ("cases", result.get("category", "")))
        category = parts[1] if len(parts) > 2 else ""  # noqa: PLR2004 -- folder, category, file
        has_passed = result["status"] == "pass"
        name = str(result.get("name", ""))
        found.append(
            Case(test_id=result["test_id"], name=name, folder=parts[0], category=category, has_passed=has_passed)
        )
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
    lines += [
        "The manifest claims level 2: no case of level 3, workflows, is among these, and levels build on each other. What is",
        "there of levels 3 and 4 is in the manifest's capabilities.",
        "",
    ]
    return "\n".join(lines)


def _key(path: Path) -> tuple[str, str]:
    case = json.loads(path.read_text())
    return case.get("test_id", ""), case.get("name", "")
