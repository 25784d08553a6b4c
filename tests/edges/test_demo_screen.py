"""The demo in a terminal of 80 x 24: each key keeps its figures and its verdict."""

import re
from typing import Any

import pytest
from rich.console import Console

from project import screen
from project.demo.screen import show_summary
from project.demo.summary import KeyVerdict, Summary, Totals
from project.shop.limits import published


def verdict(limits: Any, *, ok: bool) -> KeyVerdict:
    paces = {
        name: {"limit": limits[name]["limit"], "period_s": 1.0} for name in ("rate", "throttle") if limits.get(name)
    }
    return KeyVerdict(
        concurrency=limits.get("concurrency"), rate=paces.get("rate"), throttle=paces.get("throttle"), requests=1110,
        most_at_once=100, most_in_window=100, least_spacing_s=0.1001, rejected_429=100, violations=0, ok=ok
    )  # fmt: skip


def test_each_key_keeps_its_figures_and_its_verdict(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for name, value in {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Console, "is_terminal", True)
    given: dict[str, Any] = {
        **published(),
        "both": {"concurrency": 4, "rate": {"limit": 100}, "throttle": {"limit": 10}},
    }
    is_ok = {name: number % 2 == 0 for number, name in enumerate(given)}
    summary = Summary(
        faults=[], keys={name: verdict(limits, ok=is_ok[name]) for name, limits in given.items()},
        totals=Totals(sent=552, lost=0, duplicates=0, violations=0, rejected_429=0), tolerance_s=0.005,
        longest_way_s=0.01, flood_before_drip=1, deliveries={"direct": 522, "broker": 30}, seconds=30.0
    )  # fmt: skip
    show_summary(screen.console(), summary)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out).splitlines()
    assert max(map(len, shown)) <= 80
    for name in given:
        (line,) = [line for line in shown if line.split()[:1] == [name]]
        assert line.rstrip()[-1] == ("✓" if is_ok[name] else "✗"), line
        assert re.search(r" 1110 +100 ", line), line
