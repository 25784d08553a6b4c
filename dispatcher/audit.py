"""Audit: look whether every invariant holds in a live database, and mend what can be mended.

Each check is one statement, so it sees one moment, and a moment between two steps of a healthy system is no
finding: what only passes (a lane that is about to be served, say) counts if it is still the same after two ticks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from time import sleep
from typing import Any

from dispatcher import mend, reports, sql
from dispatcher.conf import Conf, conf, pass_bound, queue_grace
from dispatcher.invariants import CHECKS, NOTES, UNSEEN, Check
from dispatcher.lifecycle import periodic_runs

EXAMPLES = 10
"""How many findings of a check are told; the others are counted."""
_MOST = 1_000
"""How many findings of a check are read, and mended at a time."""
_LOOKS = 4
"""How often it looks again at what may only be passing."""
_ROUNDS = 10
_SLACK = timedelta(seconds=1)
"""How soon after a change of limits an admission may still have known the old ones."""
_OLD = reports.OLD_TRANSACTION


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One row that breaks an invariant, and what it looks like."""

    what: str
    target: str
    version: str
    """The same as long as nobody has touched it."""
    facts: Mapping[str, Any]
    total: int
    """How many there are of its kind, those that were not read included."""

    @property
    def thing(self) -> tuple[str, str]:
        """What it is about, and in which version."""
        return self.target, self.version


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one check found, and how much of it was mended."""

    check: Check
    count: int = 0
    findings: Sequence[Finding] = ()
    mended: int = 0

    @property
    def can_be_mended(self) -> bool:
        """Whether there is something to mend, and a way to."""
        return bool(self.count and self.check.mend)

    def staying(self, again: "Found") -> "Found":
        """Return what both looks saw."""
        seen = {finding.thing for finding in self.findings}
        kept = [finding for finding in again.findings if finding.thing in seen]
        is_all = len(kept) == len(again.findings)
        return replace(again, findings=kept, count=min(self.count, again.count) if is_all else len(kept))

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs."""
        told = [{"what": finding.what, **finding.facts} for finding in self.findings[:EXAMPLES]]
        return {"name": self.check.name, "sentence": self.check.sentence, "findings": self.count, "examples": told}


@dataclass(frozen=True, kw_only=True)
class Report:
    """What the audit found, as it was at the end: after the repair, if it was to repair."""

    checked_at: datetime
    found: Sequence[Found]
    notes: Sequence[Found]

    @property
    def is_ok(self) -> bool:
        """Whether every invariant that rows can show holds; notes do not count."""
        return not any(found.count for found in self.found)

    @property
    def mended(self) -> int:
        """How much was mended. Expected: 0."""
        return sum(found.mended for found in self.found)

    def as_json(self) -> dict[str, Any]:
        """Write it for other programs."""
        return {
            "ok": self.is_ok,
            "checked_at": self.checked_at.isoformat(timespec="milliseconds"),
            "checks": [
                {**found.as_json(), "invariant": found.check.invariant, "mended": found.mended} for found in self.found
            ],
            "notes": [found.as_json() for found in self.notes if found.count],
            "unseen": UNSEEN,
        }


Pause = Callable[[float], None]
Params = Mapping[str, Any]


def audit(
    *,
    settle: timedelta | None = None,
    repair: bool = False,
    now: datetime | None = None,
    pause: Pause = sleep,
) -> Report:
    """Look at every check; with `repair`, mend what can be mended and look again, until nothing more is mended.

    settle: how long what may only be passing must stay the same to count, two ticks by default.
    """
    settings = conf()
    waits = 2 * settings.tick if settle is None else settle
    look = partial(_audit, _params(settings, now), waits, pause)
    checked_at, found = look()
    rounds = _ROUNDS if repair else 0
    while rounds and any(each.can_be_mended for each in found):
        mended = {each.check: _mend(each) for each in found}
        rounds = rounds - 1 if any(mended.values()) else 0
        so_far = {each.check: each.mended + mended[each.check] for each in found}
        checked_at, found = look()
        found = [replace(each, mended=so_far[each.check]) for each in found]
    return Report(checked_at=checked_at, found=found[: len(CHECKS)], notes=found[len(CHECKS) :])


def _params(settings: Conf, now: datetime | None) -> Params:
    return {
        "now": now,
        "most": _MOST,
        "slack": _SLACK + settings.horizon,
        "margin": settings.margin,
        "late": 2 * settings.tick,
        "overdue": mend.overdue(settings),
        "is_gated": queue_grace() is not None,
        "ahead": pass_bound(settings),
        "long": _OLD,
        "passed_after": None,
        "periodic": [task.name for task in periodic_runs.periodic()],
        "periodic_late": [task.late for task in periodic_runs.periodic()],
    }


def _audit(params: Params, waits: timedelta, pause: Pause) -> tuple[datetime, list[Found]]:
    """Return what all checks and notes find, and when, by the database's clock."""
    checked_at, found = _look([*CHECKS, *NOTES], params)
    return checked_at, _settle(found, checked_at, waits, params, pause)


def _look(checks: Sequence[Check], params: Params) -> tuple[datetime, list[Found]]:
    """Ask all of this at once; return also the time by the database's clock, before."""
    with sql.own_transaction():
        clock = sql.ask("read_clock", sql.Clock, {})
        asked = [sql.ask(check.statement, Finding, params) for check in checks]
    answers = [(check, each.rows()) for check, each in zip(checks, asked, strict=True)]
    found = [Found(check=check, findings=rows, count=rows[0].total if rows else 0) for check, rows in answers]
    return clock.row().database_time, found


def _settle(found: Sequence[Found], looked_at: datetime, waits: timedelta, params: Params, pause: Pause) -> list[Found]:
    """Look again, several times over this time, at what may only be passing; return what stayed, and all else."""
    staying = {each.check: each for each in found if each.check.passes and each.count}
    # Whoever was admitted this long after the first look must have seen what that saw.
    passed_after = looked_at + min(_SLACK, waits / 2)
    for number in range(1, _LOOKS + 1):
        if not staying:
            break
        pause(waits.total_seconds() / _LOOKS)
        is_last = number == _LOOKS
        _, again = _look(list(staying), {**params, "passed_after": passed_after if is_last else None})
        kept = [staying[each.check].staying(each) for each in again]
        staying = {each.check: each for each in kept if each.count}
    return [staying.get(each.check, Found(check=each.check)) if each.check.passes else each for each in found]


def _mend(found: Found) -> int:
    return found.check.mend(found.findings) if found.check.mend and found.findings else 0
