"""The demo in a terminal of 80 x 24, a real one: each key keeps its figures and its verdict."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from project.shop.limits import published

ROOT = Path(__file__).resolve().parents[2]
SHOW = """
import django

django.setup()

from project.demo import screen
from project.demo.summary import KeyVerdict, Summary, Totals
from project.shop.limits import published


def pace(given):
    return given and {"limit": given["limit"], "period_s": 1.0}


def verdict(limits, ok):
    return KeyVerdict(
        concurrency=limits.get("concurrency"), rate=pace(limits.get("rate")), throttle=pace(limits.get("throttle")),
        requests=1110, most_at_once=100, most_in_window=100, least_spacing_s=0.1001, rejected_429=100,
        violations=0, ok=ok,
    )


keys = {name: verdict(limits, number % 2 == 0) for number, (name, limits) in enumerate(published().items())}
keys["both"] = verdict({"concurrency": 4, "rate": {"limit": 100}, "throttle": {"limit": 10}}, True)
totals = Totals(sent=552, lost=0, duplicates=0, violations=0, rejected_429=0)
screen.show_summary(screen.console(), Summary(
    faults=[], keys=keys, totals=totals, tolerance_s=0.005, longest_way_s=0.01, flood_before_drip=1,
    deliveries={"direct": 522, "broker": 30}, seconds=30.0,
))
"""


@pytest.fixture
def shown() -> list[str]:
    """Return the lines that a terminal of 80 x 24 is given."""
    main, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    with subprocess.Popen(
        [sys.executable, "-c", SHOW],
        cwd=ROOT,
        env={**env, "TERM": "xterm"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    ):
        os.close(terminal)
        written = b""
        try:
            while piece := os.read(main, 65_536):
                written += piece
        except OSError:
            # Linux ends a terminal without a writer by an error.
            pass
    os.close(main)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode()).splitlines()


def test_each_key_keeps_its_figures_and_its_verdict(shown: list[str]) -> None:
    assert max(map(len, shown)) <= 80
    for name in [*published(), "both"]:
        (line,) = [line for line in shown if line.split()[:1] == [name]]
        assert line.rstrip()[-1] in "✓✗", line
        assert re.search(r" 1110 +100 ", line), line
