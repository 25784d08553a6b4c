"""The benchmarks start: the figures that they name are there; of other names mypy finds those that are not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_SERVER = "postgresql://postgres@localhost:1/nothing"
BENCH = """
from importlib import import_module
from bench.__main__ import GROUPS
assert [name for name, module in GROUPS.items() if not hasattr(import_module(f"bench.{module}"), name)] == []
"""
SCALE = """
from bench.scale.__main__ import NAMES
from bench.scale.variants import VARIANTS
assert set(NAMES) == set(VARIANTS)
"""


@pytest.mark.ojs
@pytest.mark.parametrize(("package", "program"), [("bench", BENCH), ("bench.scale", SCALE)])
def test_every_group_of_figures_is_there(package: str, program: str) -> None:
    given = {"DJANGO_SETTINGS_MODULE": f"{package}.settings", "BENCH_BESIDE_URL": NO_SERVER, "SCALE_LIMIT": "1"}
    env = {**os.environ, **given, "DATABASE_URL": NO_SERVER, "SCALE_LARGE_URL": NO_SERVER, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", f"import django; django.setup()\n{program}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
