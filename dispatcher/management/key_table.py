"""How the state of the keys is laid out in a terminal: a table of many, or all the facts of a few."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from dispatcher.reports import KeyState, KeyStatus, words

if TYPE_CHECKING:
    from rich.table import Table

GAP: Final = 2
SHORTEST_NAME: Final = 12
_COLORS: Final = {
    KeyState.PAUSED: "red",
    KeyState.BLOCKED: "red",
    KeyState.AT_LIMIT: "yellow",
    KeyState.OPEN: "green",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column; in a narrow terminal those with the highest `rank` go first, and rank 0 stays."""

    title: str
    cells: Sequence[str]
    is_right: bool = False
    rank: int = 0

    @property
    def width(self) -> int:
        """The width that its longest cell needs."""
        return max(len(self.title), *map(len, self.cells))

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing of any key."""
        return not any(self.cells)


def columns(keys: Sequence[KeyStatus], width: int | None) -> list[Column]:
    """Return the columns that say something and fit; None fits all. The names are cut to what room is left."""
    found = [column for column in _columns(keys) if not column.is_empty]
    while width is not None and _width(found) > width:
        last = max(found, key=lambda column: column.rank)
        if last.rank == 0 or _width(found) - found[0].width + SHORTEST_NAME <= width:
            break
        found.remove(last)
    if width is None:
        return found
    room = max(SHORTEST_NAME, width - _width(found) + found[0].width)
    return [replace(found[0], cells=[_cut(cell, room) for cell in found[0].cells]), *found[1:]]


def plain(shown: Sequence[Column]) -> str:
    """Lay the columns out as text, aligned."""
    lines = zip(*([column.title.upper(), *column.cells] for column in shown), strict=True)
    widths = [column.width for column in shown]
    return "\n".join(
        (" " * GAP)
        .join(
            cell.rjust(width) if column.is_right else cell.ljust(width)
            for cell, width, column in zip(line, widths, shown, strict=True)
        )
        .rstrip()
        for line in lines
    )


def rich(keys: Sequence[KeyStatus], shown: Sequence[Column]) -> "Table":
    """Lay the columns out as a table in colour."""
    from rich.table import Table  # noqa: PLC0415 -- the extra `cli`
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for column in shown:
        table.add_column(column.title, justify="right" if column.is_right else "left", no_wrap=True)
    for key, line in zip(keys, zip(*(column.cells for column in shown), strict=True), strict=True):
        style = {1: _COLORS[key.state]}
        table.add_row(*(Text(cell, style=style.get(number, "")) for number, cell in enumerate(line)))
    return table


def details(key: KeyStatus) -> str:
    """Tell all that is known of one key, a line for each fact."""
    facts = list(words.facts(key))
    width = max(len(title) for title, _ in facts)
    return "\n".join([f"{key.name}: {_state(key)}", *(f"  {title.ljust(width)}  {fact}" for title, fact in facts)])


def _columns(keys: Sequence[KeyStatus]) -> list[Column]:
    def column(title: str, cell: Callable[[KeyStatus], str], rank: int = 0) -> Column:
        return Column(title=title, cells=[cell(key) for key in keys], is_right=True, rank=rank)

    return [
        Column(title="Key", cells=[key.name for key in keys]),
        Column(title="State", cells=[_state(key) for key in keys]),
        column("In use", words.in_use),
        column("Window", words.window),
        column("Frees", words.frees, rank=3),
        column("Next", words.next_start, rank=1),
        column("Waiting", lambda key: f"{key.waiting:,}"),
        column("Oldest", words.oldest, rank=2),
        column("Override", words.override),
    ]


def _width(shown: Sequence[Column]) -> int:
    return sum(column.width for column in shown) + GAP * (len(shown) - 1)


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: width - 1]}…"


def _state(key: KeyStatus) -> str:
    return key.state.label.lower()
