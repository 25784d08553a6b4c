"""Which statements of a loop, a tick, a claim, a fetch or a recovery may wait for the lock of a row, and how long."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from dispatcher.sql import functions, statements

NOT_THEIRS = {"admin", "audit", "fragments", "lanes", "place", "reports", "results", "send", "session"}
"""The folders of what people and senders do, and of reports; and of `place`, which bounds what it waits for (see
own_transaction)."""
NOT_THEIRS_EITHER = {
    "control/cancel_calls", "control/run_calls_now", "jobs/store_progress", "queues/drop_oldest",
}  # fmt: skip
"""What requests do that are no fetch, and what people do."""
BOUNDED = "lock_timeout = '20ms'"
ENTRIES = {"take", "claim"}
"""The functions that statements call; the others run inside of them."""
BRIEFLY = "within finish.LOCK_WAIT, in a transaction of the engine's own; then it is brought again"
OWN_ROW = "its own row, which no other writes for longer than a trip"
OF_THE_TRIP = "rows that this transaction has locked or made"
WAITS = {
    ("recover/check_leases", "callqueue"): "no row: it waits for what stops heartbeats, too, and judges no lease then",
    ("recover/check_leases", "slot"): "the same",
    ("recover/check_leases", "worker"): "the same",
    ("recover/check_leases", "leasecheck"): "the row of recovery alone",
    ("control/block_keys", "ratelimitkey"): OF_THE_TRIP,
    ("finish/amend_call", "callqueue"): BRIEFLY,
    ("finish/requeue_call", "callqueue"): BRIEFLY,
    ("periodic_runs/begin_runs", "periodicrun"): "half a second; who waits finds that another worker runs the task",
    ("workers/touch_pull_worker", "ojs_pullworker"): OWN_ROW,
    ("workers/set_fetch_leases", "slot"): OF_THE_TRIP,
    ("workflows/record_parts", "ojs_part"): OF_THE_TRIP,
}
"""The statements whose wait has no bound, by the table, and why that stops no other call."""

_LOCK = re.compile(r"\bFOR (?:NO KEY )?(?:UPDATE|SHARE)(?: OF (\w+))?( SKIP LOCKED)?")
_WRITE = re.compile(r"\b(?:(?<!DO )(?<!KEY )UPDATE|DELETE FROM) dispatcher_(\w+)")
_UPSERT = re.compile(r"INSERT INTO dispatcher_(\w+)[^;]*?ON CONFLICT[^\n]*DO UPDATE")
_FROM = re.compile(r"\b(?:FROM|JOIN) dispatcher_(\w+) AS (\w+)")


def theirs() -> list[Path]:
    found = [file for root in statements.roots() for file in root.glob("*/*.sql")]
    return sorted(
        file
        for file in found
        if file.parent.name not in NOT_THEIRS
        and name_of(file) not in NOT_THEIRS_EITHER
        and file.parent != functions.FOLDER
    )


def name_of(file: Path) -> str:
    return f"{file.parent.name}/{file.stem}"


def written(file: Path) -> str:
    return re.sub(r"--.*$", "", file.read_text(), flags=re.MULTILINE)


def select_of(text: str, end: int) -> str:
    """Return the part of a text in front of a locking clause that belongs to the same parentheses."""
    depth, start = 0, end
    while start > 0 and depth >= 0:
        start -= 1
        depth += {")": 1, "(": -1}.get(text[start], 0)
    return text[start:end]


def waits(text: str) -> set[str]:
    """Return the tables whose rows a text locks, where it does not skip those that others have locked."""
    skipped, waited = set[str](), set[str]()
    for lock in _LOCK.finditer(text):
        tables = {alias: table for table, alias in _FROM.findall(select_of(text, lock.start()))}
        named = {tables[lock[1]]} if lock[1] else set(tables.values())
        (skipped if lock[2] else waited).update(named)
    return waited | set(_WRITE.findall(text)) - skipped | set(_UPSERT.findall(text))


def test_each_statement_that_may_wait_for_a_row_has_a_reason() -> None:
    found = {(name_of(file), table) for file in theirs() for table in waits(written(file))}
    assert found == set(WAITS)


def reached(name: str, files: Mapping[str, str]) -> set[str]:
    """Return a function and those that it calls, and they call."""
    found, left = set[str](), {name}
    while left - found:
        found |= left
        left = {each for one in found for each in re.findall(r"@(\w+)\(", files[one])} & files.keys()
    return found


def test_a_function_waits_for_a_lock_for_20_ms_at_most() -> None:
    files = {file.stem: written(file) for file in functions.FOLDER.glob("*.sql")}
    called = {name for file in theirs() for name in re.findall(r"\{\{@(\w+)\}\}\(", written(file))}
    assert {name for name in called if any(waits(files[each]) for each in reached(name, files))} == ENTRIES
    for name in ENTRIES:
        assert BOUNDED in files[name], name


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT id FROM dispatcher_note AS note FOR UPDATE SKIP LOCKED", set()),
        ("SELECT id FROM dispatcher_note AS note FOR UPDATE", {"note"}),
        ("UPDATE dispatcher_lane AS lane SET a = 1", {"lane"}),
        ("DELETE FROM dispatcher_note AS n WHERE (SELECT FROM dispatcher_note AS m FOR UPDATE SKIP LOCKED)", set()),
        ("DELETE FROM dispatcher_note AS n WHERE (SELECT FROM dispatcher_slot AS s FOR UPDATE SKIP LOCKED)", {"note"}),
        ("INSERT INTO dispatcher_process (a) SELECT 1 ON CONFLICT (a) DO UPDATE SET a = 2", {"process"}),
    ],
)
def test_a_wait_is_found(text: str, expected: set[str]) -> None:
    assert waits(text) == expected
