"""Audit: check every invariant in a live database, and repair what can be repaired.

Each check is one statement, or a part of one, so it reads one snapshot. A healthy system passes through states that
look like a violation (a lane that the next trip will serve, for example): such a state is a finding only if it is
unchanged after two ticks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from time import sleep
from typing import Any

from dispatcher import sql
from dispatcher.audit import repairs
from dispatcher.audit.invariants import CHECKS, NOTES, UNSEEN, Check
from dispatcher.conf import Conf, conf, counting, needs_worker
from dispatcher.lifecycle import periodic_runs
from dispatcher.lifecycle.recover import SOON
from dispatcher.reports.health import OLD_TRANSACTION, Finding

EXAMPLES = 10
"""How many findings of a check are shown; the others are counted."""
_MOST = 1_000
"""How many findings of a check are read, and repaired at a time."""
_NEWEST = 2_000
"""How many of the newest calls are looked at for fields that do not go together."""
_LOOKS = 4
"""How often a state that may be transient is checked again."""
_ROUNDS = 10
_SLACK = timedelta(seconds=1)
"""How long after a change of limits a trip may still use the old ones."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The findings of one check, and how many were repaired."""

    check: Check
    count: int = 0
    findings: Sequence[Finding] = ()
    repaired: int = 0

    @property
    def can_be_repaired(self) -> bool:
        """Whether it has findings, and its check has a repair."""
        return bool(self.count and self.check.repair)

    def staying(self, again: "Found") -> "Found":
        """Return the findings that both runs of the check share."""
        seen = {finding.identity for finding in self.findings}
        kept = [finding for finding in again.findings if finding.identity in seen]
        is_all = len(kept) == len(again.findings)
        return replace(again, findings=kept, count=min(self.count, again.count) if is_all else len(kept))

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs."""
        examples = [finding.as_json() for finding in self.findings[:EXAMPLES]]
        return {"name": self.check.name, "sentence": self.check.sentence, "findings": self.count, "examples": examples}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the audit found, after the repair if there was one."""

    checked_at: datetime
    found: Sequence[Found]
    notes: Sequence[Found]

    @property
    def is_ok(self) -> bool:
        """Whether every invariant holds that rows can show; notes do not count."""
        return not any(found.count for found in self.found)

    @property
    def repaired(self) -> int:
        """How many findings were repaired. Expected: 0."""
        return sum(found.repaired for found in self.found)

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs."""
        return {
            "ok": self.is_ok,
            "checked_at": self.checked_at.isoformat(timespec="milliseconds"),
            "checks": [
                {**found.as_json(), "invariant": found.check.invariant, "repaired": found.repaired}
                for found in self.found
            ],
            "notes": [found.as_json() for found in self.notes if found.count],
            "unseen": UNSEEN,
        }


Pause = Callable[[float], None]
Params = Mapping[str, Any]


def audit(
    *, settle: timedelta | None = None, repair: bool = False, now: datetime | None = None, pause: Pause = sleep
) -> Report:
    """Run every check; with `repair`, repair and check again until nothing more is repaired.

    settle: how long a state that may be transient must last to be a finding; two ticks by default.
    """
    settings = conf()
    waits = 2 * settings.tick if settle is None else settle
    look = partial(_audit, _params(settings, now), waits, pause)
    checked_at, found = look()
    rounds = _ROUNDS if repair else 0
    while rounds and any(each.can_be_repaired for each in found):
        repaired = {each.check: _repair(each) for each in found}
        rounds = rounds - 1 if any(repaired.values()) else 0
        so_far = {each.check: each.repaired + repaired[each.check] for each in found}
        checked_at, found = look()
        found = [replace(each, repaired=so_far[each.check]) for each in found]
    return Report(checked_at=checked_at, found=found[: len(CHECKS)], notes=found[len(CHECKS) :])


def _params(settings: Conf, now: datetime | None) -> Params:
    return {
        "now": now,
        "most": _MOST,
        "slack": _SLACK + settings.horizon,
        **counting(),
        "late": 2 * settings.tick,
        "soon": SOON,
        "overdue": repairs.overdue(settings),
        "needs_worker": needs_worker(),
        "ahead": settings.dispatch_ahead,
        "newest": _NEWEST,
        "long": OLD_TRANSACTION,
        "passed_after": None,
        "periodic": [task.name for task in periodic_runs.periodic()],
        "periodic_late": [task.late for task in periodic_runs.periodic()],
    }


def _audit(params: Params, waits: timedelta, pause: Pause) -> tuple[datetime, list[Found]]:
    """Return the findings of all checks and notes, and their time by the database's clock."""
    checked_at, found = _run([*CHECKS, *NOTES], params)
    return checked_at, _settle(found, checked_at, waits, params, pause)


def _run(checks: Sequence[Check], params: Params) -> tuple[datetime, list[Found]]:
    """Run these checks in one transaction; return also the time before them, by the database's clock."""
    with sql.own_transaction():
        clock = sql.ask("read_clock", datetime, {})
        asked = {name: sql.ask(name, Finding, params) for name in dict.fromkeys(check.statement for check in checks)}
    answers = {name: each.rows() for name, each in asked.items()}
    found = []
    for check in checks:
        rows = [row for row in answers[check.statement] if row.name in ("", check.part)]
        found.append(Found(check=check, findings=rows, count=rows[0].total if rows else 0))
    return clock.row(), found


def _settle(found: Sequence[Found], looked_at: datetime, waits: timedelta, params: Params, pause: Pause) -> list[Found]:
    """Run the checks of transient states again, several times within `waits`; return what stayed, and all others."""
    staying = {each.check: each for each in found if each.check.is_transient and each.count}
    # A trip this long after the first run has seen the same rows.
    passed_after = looked_at + min(_SLACK, waits / 2)
    for number in range(1, _LOOKS + 1):
        if not staying:
            break
        pause(waits.total_seconds() / _LOOKS)
        is_last = number == _LOOKS
        _, again = _run(list(staying), {**params, "passed_after": passed_after if is_last else None})
        kept = [staying[each.check].staying(each) for each in again]
        staying = {each.check: each for each in kept if each.count}
    return [staying.get(each.check, Found(check=each.check)) if each.check.is_transient else each for each in found]


def _repair(found: Found) -> int:
    return found.check.repair(found.findings) if found.check.repair and found.findings else 0
