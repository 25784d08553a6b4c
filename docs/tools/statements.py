"""Print docs/reference/sql.md from the headers of the statements.

.venv/bin/python -m docs.tools.statements > docs/reference/sql.md
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parents[2] / "dispatcher"
SQL: Final = PACKAGE / "sql"
TITLES: Final = {
    "send": "Send",
    "lanes": "Lanes and keys",
    "place": "Place",
    "take": "Take",
    "oversized": "Oversized calls",
    "publish": "Publish",
    "unstarted": "Calls that do not start",
    "claim": "Claim",
    "finish": "Finish",
    "wake": "Idle workers",
    "schedule": "What is due",
    "heartbeat": "Workers",
    "recover": "Recover",
    "control": "Control",
    "retention": "Retention",
    "periodic_runs": "Periodic tasks",
    "results": "Results",
    "reports": "Reports",
    "admin": "Admin",
    "audit": "Audit",
    "event_log": "Event log",
    "session": "Session",
    "functions": "Functions",
    "fragments": "Fragments",
}
"""The folders in the order of a call's walk, with what is beside it after that."""
OPENING: Final = """\
# The statements

Everything that changes a row of the dispatcher is a file in `dispatcher/sql/`: one statement each, named after its
effect, in a folder for each step. Those of the app `dispatcher.ojs` are in `dispatcher/ojs/sql/`. The rest of a file's
header says what the caller must hold and which index the statement relies on. What several statements share is a
fragment, `{{name}}`, that the loader expands once. A function, `{{@name}}`, is installed by a migration ([decision
0027](../decisions/0027-functions-of-the-database.md)).

The text that the server receives begins with the name, as in `/* send_calls */ WITH ...`, so `pg_stat_activity` and
`pg_stat_statements` show it. This page is generated from the headers by `docs/tools/statements.py`.
"""


def page() -> str:
    """Return the page."""
    folders = {folder.name for folder in SQL.iterdir() if any(folder.glob("*.sql"))}
    sections = [_section((SQL / name).glob("*.sql"), title) for name, title in TITLES.items() if name in folders]
    if missing := folders - TITLES.keys():
        raise KeyError(*missing)
    return "\n".join([OPENING, *sections, _section((PACKAGE / "ojs" / "sql").glob("*/*.sql"), "Open Job Spec")])


def _section(files: Iterable[Path], title: str) -> str:
    by_name = sorted(files, key=lambda file: file.name)
    rows = [f"| `{name}` | {effect} |" for name, effect in map(_described, by_name)]
    return "\n".join([f"## {title}", "", "| name | effect |", "|---|---|", *rows, ""])


def _described(file: Path) -> tuple[str, str]:
    """Return a file's name, with the parameters of a fragment, and the first sentence of its header."""
    header = re.match(r"(?:-- .*\n)+", file.read_text())
    if header is None:
        raise ValueError(file)
    text = " ".join(line.removeprefix("-- ") for line in header[0].splitlines())
    name, _, effect = text.partition(": ")
    sentence = effect.partition(". ")[0].rstrip(".").replace("|", "\\|")
    return name, f"{sentence[0].upper()}{sentence[1:]}."


if __name__ == "__main__":
    print(page(), end="")
