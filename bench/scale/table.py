"""Print what the last run has stored as the tables of docs/explanation/benchmarks.md: `python -m bench.scale.table`."""

import json
import sys
from pathlib import Path
from typing import Any

from bench.report import number
from project.run_dirs import RUN

_HEAD = "| figure | large | small, or the bound in time | | ratio | bound | |\n|---|---|---|---|---|---|---|"
_PAGE = 1.5
_AGAIN = "ended: "
"""What the figures begin with that were measured before, on the yardstick."""

Stored = dict[str, Any]


def main() -> int:
    """Print all figures of calls, trips, ticks and orders, and the short ones of the others; return the exit code."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RUN / "scale.json"
    figures: list[Stored] = json.loads(path.read_text())
    again = [figure for figure in figures if figure["name"].startswith(_AGAIN)]
    pages = [figure for figure in figures if figure["bound"] == _PAGE and figure["unit"] != "s" and figure not in again]
    print(_table([figure for figure in figures if figure not in again and figure not in pages]))
    for what, some in (("Pages and commands", pages), ("Beside the calls of the variant `ended`", again)):
        short = sorted((figure for figure in some if not figure["ok"]), key=lambda figure: -(figure["ratio"] or 1e9))
        print(f"\n{what}: {len(some) - len(short)} of {len(some)} figures keep their bounds. The others:\n")
        print(_table(short))
    return 0


def _table(figures: list[Stored]) -> str:
    return "\n".join([_HEAD, *map(_row, figures)])


def _row(figure: Stored) -> str:
    ratio = "-" if figure["ratio"] is None else f"{figure['ratio']:.3g}"
    bound = "-" if figure["ours"] is None else f"≤ {figure['bound']:g}"
    verdict = "ok" if figure["ok"] else f"short {figure['note']}".strip()
    cells = [figure["name"], number(figure["ours"]), number(figure["reference"]), figure["unit"], ratio, bound, verdict]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
