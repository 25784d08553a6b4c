"""The benchmarks start: what they use of the dispatcher is there. No other test imports most of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_SERVER = "postgresql://postgres@localhost:1/nothing"
SETTINGS = {
    "bench": {"DJANGO_SETTINGS_MODULE": "bench.settings", "BENCH_BESIDE_URL": NO_SERVER},
    "bench.scale": {
        "DJANGO_SETTINGS_MODULE": "bench.scale.settings",
        "SCALE_LARGE_URL": NO_SERVER,
        "SCALE_LIMIT": "1",
    },
}
GROUPS = """
from importlib import import_module
from bench.__main__ import GROUPS
assert [name for name, module in GROUPS.items() if not hasattr(import_module(f"bench.{module}"), name)] == []
"""
VARIANTS = """
from bench.scale.__main__ import NAMES
from bench.scale.variants import VARIANTS
assert set(NAMES) == set(VARIANTS)
"""


def python(package: str, *args: str, path: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """Run Python with the settings of a package; no server is needed."""
    environ = {**os.environ, "DATABASE_URL": NO_SERVER, **SETTINGS[package], "PYTHONPATH": f"{path}:{ROOT}"}
    return subprocess.run(
        [sys.executable, *args], cwd=path, env=environ, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.ojs
@pytest.mark.parametrize("package", SETTINGS)
def test_every_name_that_the_benchmarks_use_is_there(package: str) -> None:
    done = python(package, "-m", "tests.unit.unknown_names", package)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


@pytest.mark.ojs
@pytest.mark.parametrize(("package", "program"), [("bench", GROUPS), ("bench.scale", VARIANTS)])
def test_every_group_of_figures_is_there(package: str, program: str) -> None:
    done = python(package, "-c", f"import django; django.setup()\n{program}")
    assert done.returncode == 0, done.stderr


def test_a_name_that_is_wrong_is_found(tmp_path: Path) -> None:
    made = tmp_path / "wrong"
    made.mkdir()
    made.joinpath("__init__.py").touch()
    made.joinpath("module.py").write_text(
        "from dispatcher.lifecycle import admit\n\n\n"
        "def later() -> None:\n    from dispatcher.lifecycle.admit import missing\n\n"
        "    admit.admit()\n    admit.unknown()\n"
    )
    done = python("bench", "-m", "tests.unit.unknown_names", "wrong", path=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "wrong.module:5: dispatcher.lifecycle.admit.missing",
        "wrong.module:8: dispatcher.lifecycle.admit.unknown",
    ]
