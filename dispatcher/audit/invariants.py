"""The checks of the audit: for each invariant that rows can show, a statement whose rows are findings; and notes."""

from dataclasses import dataclass

from dispatcher.audit import repairs
from dispatcher.audit.repairs import Repair


@dataclass(frozen=True, kw_only=True)
class Check:
    """One statement, or a part of one, and what each row that it returns means."""

    statement: str
    sentence: str
    part: str = ""
    """The name of its rows, where it shares the statement with others."""
    invariant: int | None = None
    """Its number in docs/reference/dispatcher-audit.md; None for a note, which violates nothing."""
    repair: Repair | None = None
    is_transient: bool = False
    """A healthy system passes through such states; only one that stays is a finding."""

    @property
    def name(self) -> str:
        """Its name in reports."""
        return self.part or self.statement.removeprefix("audit_")


CHECKS = (
    Check(
        statement="audit_over_limit",
        invariant=1,
        sentence="More of a key was taken than a limit of it allows. Nothing to repair. Why: what is in flight "
        "(concurrency), or in one worker (per_worker), drains by itself; the window of a trip passes (rate); calls "
        "have started closer than they should (throttle).",
    ),
    Check(
        statement="audit_miscounted",
        invariant=1,
        sentence="A running total of a key's starts leaves some out: rows were written by hand. Nothing to repair: it "
        "is over when its windows have passed.",
    ),
    Check(
        statement="audit_in_flight",
        part="wrong_fields",
        invariant=2,
        sentence="The fields of a call do not go together. Nothing to repair: its row was written by hand, or this is "
        "a bug.",
    ),
    Check(
        statement="audit_in_flight",
        part="two_tickets",
        invariant=2,
        sentence="Two calls in flight have the same ticket. Nothing to repair: it goes when they end.",
    ),
    Check(
        statement="audit_in_flight",
        part="lease_unrecovered",
        invariant=2,
        sentence="A lease ran out long ago, and the call was not recovered: nothing runs dispatcher.recover.",
        repair=repairs.recover_leases,
        # A table that was locked keeps heartbeats out; they come through when it is open again.
        is_transient=True,
    ),
    Check(
        statement="audit_in_flight",
        part="slot_without_call",
        invariant=4,
        sentence="A slot is held by a call that is not in flight: its room is never freed.",
        repair=repairs.free_orphans,
    ),
    Check(
        statement="audit_in_flight",
        part="call_without_slot",
        invariant=4,
        sentence="A call is in flight and holds no slot: no limit counts it, and no lease ends it.",
        repair=repairs.put_back,
    ),
    Check(
        statement="audit_in_flight",
        part="wrong_slots",
        invariant=4,
        sentence="A call holds other slots than its keys and costs ask for. Nothing to repair: they go when it ends.",
    ),
    Check(
        statement="audit_order",
        invariant=5,
        sentence="A call waited while one sent after it in the same lane was taken. Nothing to repair. One cause is "
        "innocent: a transaction that keeps the call's row locked.",
        is_transient=True,
    ),
    Check(
        statement="audit_unserved",
        invariant=6,
        sentence="Calls that no limit holds do not start, and no trip will find them. Why: their lane sleeps without a "
        "note (asleep), is parked on a key that has room (parked), or is ready beside a free worker (ready); their "
        "time has come (due); or they have no lane yet, since one of their keys could not be made (unplaced). If it "
        "is not a bug, nothing runs dispatcher.tick.",
        repair=repairs.serve,
        is_transient=True,
    ),
    Check(
        statement="audit_oversized",
        invariant=9,
        sentence="Calls cost more than the limits of a key in force ever allow: they wait alone until these are "
        "raised, or they are cancelled. Only those that fit now can be repaired.",
        repair=repairs.serve,
        is_transient=True,
    ),
)

NOTES = (
    Check(
        statement="audit_notes",
        part="queue_unserved",
        sentence="A queue has calls, and no live worker: nothing more of it is dispatched until one comes.",
    ),
    Check(
        statement="audit_notes",
        part="unstarted",
        sentence="A call was dispatched and came back without a start, three times or because no live worker of its "
        "queue knows its task: it waits, longer each time.",
    ),
    Check(
        statement="audit_notes",
        part="poison",
        sentence="A call was discarded within the last day because it kills its workers.",
    ),
    Check(
        statement="audit_old_transaction",
        sentence="A transaction has been open for more than a minute: VACUUM can't remove rows that died since.",
    ),
    Check(
        statement="audit_notes",
        part="periodic_overdue",
        sentence="A periodic task has not run for a long time: neither beat nor a worker runs it.",
    ),
)

UNSEEN = (
    "Invariants 3 (a late delivery changes nothing) and 7 (a call is part of its sender's transaction) leave no trace "
    "in the rows: tests/races/test_tickets.py and tests/races/test_creation.py show them."
)
