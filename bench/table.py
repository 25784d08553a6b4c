"""The table of figures in docs/explanation/benchmarks.md, with the commit and the day of its run."""

import os
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime

from bench import database
from bench.figures import Figure
from project.run_dirs import ROOT
from project.screen import number

PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"
HEAD = "| figure | ours | reference | | ratio | bound | |\n|---|---|---|---|---|---|---|"


def write(figures: Sequence[Figure]) -> None:
    """Replace the table of the page by one of these figures."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    commit = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    ((server,),) = database.execute("SHOW server_version")
    run = f"Commit {commit}, {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, PostgreSQL {server.split()[0]}."
    table = "\n".join([f"{BEGIN}{run}\n\n{HEAD}", *map(_row, figures), END])
    PAGE.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: table, PAGE.read_text(), flags=re.DOTALL))


def _row(figure: Figure) -> str:
    verdict = "ok" if figure.ok else f"short {figure.note}".strip()
    cells = [figure.name, number(figure.ours), number(figure.reference), figure.unit, number(figure.ratio)]
    return f"| {' | '.join(cells)} | {figure.side.value} {figure.bound:g} | {verdict} |"
