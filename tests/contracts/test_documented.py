"""The reference documents all that users see: settings, checks, states, errors, log messages."""

import inspect
import re
from pathlib import Path

import pytest

from dispatcher import checks, errors
from dispatcher.conf import settable
from dispatcher.errors import DispatcherError
from dispatcher.states import OnLimit, State

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


def named_in(page: str) -> set[str]:
    """Return what a page of the reference writes as code, each word of it."""
    code = re.findall(r"`([^`\n]+)`", (REFERENCE / page).read_text())
    return {word for text in code for word in re.findall(r"[\w.]+", text)}


KINDS = {
    "settings.md": set(settable()),
    "checks.md": set(re.findall(r"dispatcher\.[EW]\d{3}", inspect.getsource(checks))),
    "states.md": {str(state) for state in State},
    "errors.md": {
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, DispatcherError) and kind.__module__ == errors.__name__
    },
    "python-api.md": {str(action) for action in OnLimit},
}


@pytest.mark.parametrize("page", KINDS)
def test_nothing_is_missing_from_the_reference(page: str) -> None:
    missing = sorted(KINDS[page] - named_in(page))
    assert not missing, f"docs/reference/{page} does not document {', '.join(missing)}"
    assert KINDS[page]


def test_the_reference_names_no_check_that_does_not_exist() -> None:
    documented = {word for word in named_in("checks.md") if re.fullmatch(r"dispatcher\.[EW]\d{3}", word)}
    assert documented == KINDS["checks.md"]


def test_the_log_messages_of_the_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "how-to" / "what-to-watch.md").read_text()
    named = re.findall(r"^\| `(dispatcher[\w.]*)`: `([^`]+)`", page, re.MULTILINE)
    assert len(named) > 10
    for logger, message in named:
        path = ROOT.joinpath(*logger.split("."))
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        # A failed action is logged as "could not %s".
        for part in re.split(r"\.\.\.|dispatcher\.tick|(?<=could not) ", message):
            assert part.strip() in source, f"{logger} does not log {message!r}"
