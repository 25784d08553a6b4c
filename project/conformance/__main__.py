"""Run the public cases against a live server: `python -m project.conformance [--suites DIR] [--strict] ...`.

Writes .run/conformance.json and, for the cases that the project brings, docs/conformance.md.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import django
from django.core.management import call_command
from django.db import connections

from project.conformance.table import SUITES, Case, page, read
from project.processes import ChildFailed, Stack, free_port
from project.run_dirs import ROOT, RUN, RunDirBusy
from project.screen import write
from project.services import embedded

RUNNER = ROOT / "conformance" / "run_suite.py"
RESULT = RUN / "conformance.json"
PAGE = ROOT / "docs" / "conformance.md"
SETTINGS = "project.conformance.settings"


def main() -> None:
    """Start the servers, run the cases, write down what came of them; exit 0 only if all passed that can be."""
    parser = argparse.ArgumentParser(prog="python -m project.conformance", description=__doc__)
    parser.add_argument("--suites", type=Path, default=SUITES, metavar="DIR", help="another folder of cases")
    given, more = parser.parse_known_args()
    try:
        with embedded(name="conformance") as services, Stack(services.run_dir) as stack:
            os.environ["DJANGO_SETTINGS_MODULE"] = SETTINGS
            url = _start(stack)
            report = services.run_dir / "cases.json"
            _run(url, given.suites, report, more)
            stack.ensure_running()
            cases = read(report, given.suites)
    except (ChildFailed, RunDirBusy) as error:
        sys.exit(str(error))
    _write(cases, is_own=given.suites == SUITES and not more)


def _start(stack: Stack) -> str:
    django.setup()
    call_command("migrate", verbosity=0)
    connections.close_all()
    stack.env["DJANGO_SETTINGS_MODULE"] = SETTINGS
    port = free_port()
    stack.start_web(port, threads=16)
    stack.start_dispenser()
    stack.start_beat()
    stack.wait_ready()
    return f"http://127.0.0.1:{port}"


def _run(url: str, suites: Path, report: Path, more: list[str]) -> None:
    reset = f"{url}/ojs/test/reset"
    command = [sys.executable, str(RUNNER), "--url", url, "--reset-url", reset, "--suites", str(suites)]
    subprocess.run([*command, "--json", str(report), *more], check=False)


def _write(cases: list[Case], *, is_own: bool) -> None:
    failed = [case.test_id for case in cases if not case.has_passed]
    unexplained = [case.test_id for case in cases if not case.has_passed and not case.why]
    report = {
        "passed": len(cases) - len(failed),
        "failed": len(failed),
        "failed_ids": failed,
        "unexplained": unexplained,
    }
    write(RESULT, report)
    print(
        f"{report['passed']} passed, {report['failed']} failed, of which {len(unexplained)} are not explained: {RESULT}"
    )
    if is_own:
        PAGE.write_text(page(cases))
    sys.exit(1 if unexplained or not cases else 0)


if __name__ == "__main__":
    main()
