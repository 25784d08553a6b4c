"""Plant the faults: `python -m trials.mutants [NAME ...]`; exits 0 only if each is caught, or explained.

A name is a rule, or a rule and a place. DATABASE_URL and CELERY_BROKER_URL name servers to use; others are embedded.
Exits 2 where a fault cannot be planted, does not run, or the tests fail without any.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from project.run_dirs import ROOT
from project.services import embedded
from trials.mutants.faults import Fault, read

BEHAVIOUR = "behaviour"
LONGEST_S = 300
"""How long the tests of a fault may take; one that never ends is caught."""
_OPTIONS = ("-q", "-n0", "--tb=short", "-rfE", "-Wignore", "--timeout=60", "-pno:cacheprovider")
_SELECTED = "not xfail and not clocks and not pooler"
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?$", re.MULTILINE)
_UNFIT = re.compile(r"ProgrammingError|SyntaxError|NameError|ImportError|XPASS")
"""What a fault ends in that does not even run, or that makes a test pass which is expected to fail."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a run of tests ended."""

    failures: Sequence[str] = ()
    """Each test that failed, with its error."""
    trouble: str | None = None
    """What kept the tests from running."""


def main() -> int:
    """Plant the faults that are asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trials.mutants", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a rule, or a rule and a place (default: all)")
    parser.add_argument("--list", action="store_true", help="only list the names")
    asked = parser.parse_args()
    known = read()
    faults = [each for each in known if not asked.names or {each.name, each.rule} & {*asked.names}]
    if unknown := {*asked.names} - {each.name for each in known} - {each.rule for each in known}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if asked.list:
        print("\n".join(each.name for each in faults))
        return 0
    if misplaced := [text for each in faults for text in each.misplaced(ROOT)]:
        print("\n".join(misplaced))
        return 2
    with embedded(name="mutants") as services, tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        if services.owns_database:
            _stop_waiting_for_the_disk(services.database_url)
        tree = Path(directory) / "tree"
        shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "__pycache__", "site", "build"))
        return _try_all(faults, tree)


def _try_all(faults: Sequence[Fault], tree: Path) -> int:
    clean = _run(tree, _files(tree, [BEHAVIOUR, *(test for each in faults for test in each.tests)]))
    if clean.failures or clean.trouble:
        print("The tests fail without a fault:", *clean.failures, clean.trouble or "", sep="\n")
        return 2
    width = max(len(each.name) for each in faults)
    survivors, unfit = [], []
    for fault in faults:
        began = time.monotonic()
        run = _try(fault, tree)
        verdict = "caught" if run.failures else "explained" if fault.explained else "SURVIVED"
        if run.trouble or any(map(_UNFIT.search, run.failures)):
            verdict = "UNFIT"
            unfit.append(fault.name)
        elif verdict == "SURVIVED":
            survivors.append(fault.name)
        why = run.trouble or next(iter(run.failures), fault.explained or "")
        print(f"{verdict:9} {fault.name:{width}} {time.monotonic() - began:5.1f} s  {why}", flush=True)
    print(f"{len(faults)} faults, {len(survivors)} survived, {len(unfit)} unfit", *survivors, *unfit, sep="\n  ")
    return 2 if unfit else 1 if survivors else 0


def _try(fault: Fault, tree: Path) -> Run:
    """Run the tests of a rule with a fault planted; and the rest of the behaviour suite, if they pass."""
    before = fault.plant(tree)
    try:
        named = _files(tree, fault.tests)
        others = [path for path in _files(tree, [BEHAVIOUR]) if path not in named]
        runs = (_run(tree, tests, "-x") for tests in (named, others) if tests)
        return next((run for run in runs if run.failures or run.trouble), Run())
    finally:
        for path, text in before.items():
            path.write_text(text)


def _run(tree: Path, tests: Sequence[str], *options: str) -> Run:
    command = [sys.executable, "-m", "pytest", *_OPTIONS, "-m", _SELECTED, *options, *tests]
    # The name of the settings was set when the project was imported; the tests load them themselves.
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environment["COLUMNS"] = "400"
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=LONGEST_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Run(failures=[f"the tests had not ended after {LONGEST_S} s"])
    failures = [f"{test}: {error[:90]}" for test, error in _FAILURE.findall(done.stdout)]
    is_fit = done.returncode == 0 or (done.returncode == 1 and failures)
    return Run(failures=failures, trouble=None if is_fit else (done.stderr or done.stdout)[-2000:])


def _files(tree: Path, names: Iterable[str]) -> list[str]:
    """Return the files of tests, below the tree, in order and each once."""
    paths = [path for name in names for path in _below(tree / "tests" / name)]
    return list(dict.fromkeys(str(path.relative_to(tree)) for path in paths))


def _below(path: Path) -> list[Path]:
    return sorted(path.glob("test_*.py")) if path.is_dir() else [path]


def _stop_waiting_for_the_disk(database_url: str) -> None:
    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")


if __name__ == "__main__":
    sys.exit(main())
