"""The reference documents all that users see: settings, checks, states, errors, log messages."""

import dataclasses
import inspect
import re
from importlib.util import find_spec

import pytest
from django.apps import apps

from dispatcher import api, errors
from dispatcher.conf import settable
from dispatcher.errors import DispatcherError
from dispatcher.ojs import errors as ojs_errors
from dispatcher.reports import Wait
from dispatcher.states import OnLimit, Reason, State
from project.celery import app
from tests.contracts.source import ROOT

pytestmark = pytest.mark.django

REFERENCE = ROOT / "docs" / "reference"


def named_in(page: str) -> set[str]:
    """Return what a page of the reference writes as code, each word of it."""
    code = re.findall(r"`([^`\n]+)`", (REFERENCE / page).read_text())
    return {word for text in code for word in re.findall(r"[\w.]+", text)}


KINDS = {
    "settings.md": set(settable()),
    "checks.md": {
        code
        for path in (ROOT / "dispatcher" / "checks").glob("*.py")
        for code in re.findall(r"dispatcher\.[EW]\d{3}", path.read_text())
    },
    "states.md": {str(state) for state in State},
    "errors.md": {
        name
        for module in (errors, ojs_errors)
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, DispatcherError)
    },
    "python-api.md": {*map(str, OnLimit), *(f"api.{name}" for name in api.__all__ if name.islower())},
}


def test_nothing_is_missing_from_the_reference() -> None:
    assert all(KINDS.values())
    missing = {page: sorted(words - named_in(page)) for page, words in KINDS.items()}
    assert {f"docs/reference/{page}": words for page, words in missing.items() if words} == {}


def test_the_reference_names_no_check_that_does_not_exist() -> None:
    documented = {word for word in named_in("checks.md") if re.fullmatch(r"dispatcher\.[EW]\d{3}", word)}
    assert documented == KINDS["checks.md"]


def test_troubleshooting_covers_every_state_every_reason_and_what_a_call_may_wait_for() -> None:
    text = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()
    first_cells = "\n".join(re.findall(r"^\| ([^|]*`[^|]*) \|", text, re.MULTILINE))
    named = set(re.findall(r"`(\w+)`", first_cells))
    stops = {"stopped_by", "limited_by", "is_served", "is_known", "until", "oversized_for", "is_placed"}
    assert stops <= {field.name for field in dataclasses.fields(Wait)}
    assert {*map(str, State), *map(str, Reason), *stops} - named == set()


def test_the_log_messages_of_the_page_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "how-to" / "what-to-watch.md").read_text()
    named = re.findall(r"^\| `(dispatcher[\w.]*)`: `([^`]+)`", page, re.MULTILINE)
    assert len(named) > 10
    for logger, message in named:
        # What failed is an argument of "could not %s": it may be in another module of the package.
        logged, _, failed = message.partition("could not ")
        module = ROOT.joinpath(*logger.split(".")).with_suffix(".py")
        package = "".join(path.read_text() for path in module.parent.glob("*.py"))
        for source, text in ((module.read_text(), logged), (package, failed)):
            for part in re.split(r"\.\.\.|dispatcher\.tick", text):
                assert part.strip() in source, f"{logger} does not log {message!r}"


@pytest.mark.ojs
def test_every_task_and_module_that_a_page_names_exists() -> None:
    app.loader.import_default_modules()
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"`(dispatcher\.[a-z_]+)`", page.read_text())}
    assert {"dispatcher.tick", "dispatcher.call"} <= named
    assert {name for name in named if name not in app.tasks and find_spec(name) is None} == set()


def test_every_permission_of_an_action_is_documented() -> None:
    page = (ROOT / "docs" / "how-to" / "admin.md").read_text()
    models = apps.get_app_config("dispatcher").get_models()
    permissions = {codename for model in models for codename, _ in model._meta.permissions}
    assert permissions
    assert {codename for codename in permissions if f"`{codename}`" not in page} == set()
