"""The results of the cases, and the page docs/conformance.md that lists them."""

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Final

from project.run_dirs import ROOT

SUITES: Final = ROOT / "conformance" / "suites"


@dataclass(frozen=True)
class Flaw:
    """A fault of a case, and the messages of the runner that it causes: another message is a fault of the server."""

    why: str
    messages: str
    """A pattern."""


_CAPTURE = Flaw("uses `capture`, which the runner does not support: it sends the text `{{job_id}}`", r"got (404|null)$")
_MATCHER = Flaw(
    "has only a matcher (`$type` or `$gte`), which the runner compares as a plain object",
    r'expected \{"\$',
)
_HISTORY = Flaw("expects error types that no request of the case contains", r"\.errors\[\d\]\.type: expected")
_RESULTS = Flaw(
    "expects `parent_results` to be a list, where the spec has an object by step",
    r"\.parent_results\[0\]\.\w+: \[0\] applied to something that is not an array$",
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
    "L3-CHN-002": _RESULTS,
}
"""Cases that no correct server passes, and the fault of each."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One case: its folder, whether it passed, and the messages of the runner if it did not."""

    test_id: str
    name: str
    folder: str
    has_passed: bool
    messages: Sequence[str] = ()
    is_hooked: bool = False
    """Whether a hook of the test server acts as the administrator: no client can send what the case needs."""

    @property
    def why(self) -> str:
        """Return the fault of the case if it causes the failure; else an empty text."""
        flaw = EXPLAINED.get(self.test_id)
        return (
            flaw.why if flaw and self.messages and all(re.search(flaw.messages, text) for text in self.messages) else ""
        )


def read(report: Path, suites: Path) -> list[Case]:
    """Return the cases of a report."""
    results = json.loads(report.read_text())["results"] if report.exists() else []
    folders = {_key(path): path.relative_to(suites).parts[0] for path in suites.rglob("*.json")}
    hooked = {_key(path) for path in suites.rglob("*.json") if "test_directive" in path.read_text()}
    found = []
    for result in results:
        has_passed = result["status"] == "pass"
        name = str(result.get("name", ""))
        messages = [failure["message"] for failure in result.get("failures") or []]
        case = Case(
            test_id=result["test_id"],
            name=name,
            folder=folders.get((result["test_id"], result.get("name")), "cases"),
            has_passed=has_passed,
            messages=messages,
            is_hooked=(result["test_id"], name) in hooked,
        )
        found.append(case)
    return found


def page(cases: list[Case]) -> str:
    """Write the page."""
    rows: dict[str, list[Case]] = defaultdict(list)
    reasons: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        rows[case.folder].append(case)
        if not case.has_passed:
            reasons[case.why or "a fault of the server"].append(f"{case.test_id} ({case.name})")
    lines = [
        "# Conformance",
        "",
        "The results of the public cases of the Open Job Spec in `conformance/suites` against a running server.",
        "`make conformance` writes this page; do not edit it.",
        "",
        "| level or extension | passed | of |",
        "|---|---|---|",
    ]
    for folder, found in [*sorted(rows.items()), ("**all**", cases)]:
        lines.append(f"| {folder} | {sum(case.has_passed for case in found)} | {len(found)} |")
    if reasons:
        lines += ["", "## Not passed", ""]
        texts = (f"- {', '.join(names)}: {why}." for why, names in reasons.items())
        lines += [fill(each, 120, subsequent_indent="  ", break_on_hyphens=False) for each in texts]
    lines += [""]
    if hooked := [f"{case.test_id} ({case.name})" for case in cases if case.has_passed and case.is_hooked]:
        lines += [
            "Passed only by a hook of the test server, which acts as the administrator (`test_directive`):",
            f"{', '.join(hooked)}.",
            "",
        ]
    levels = [case for case in cases if case.folder.startswith("level-")]
    lines += [
        "The manifest claims level 4: of the levels 0 to 4 all cases pass but those that no correct server passes."
        if all(case.has_passed or case.why for case in levels)
        else "The manifest claims level 4, which these results do not show.",
        "",
    ]
    return "\n".join(lines)


def _key(path: Path) -> tuple[str, str]:
    case = json.loads(path.read_text())
    return case.get("test_id", ""), case.get("name", "")
