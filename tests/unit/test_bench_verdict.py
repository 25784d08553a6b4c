"""The benchmarks' verdict: bounds and the floor, what is given up or fails, and what is stored when."""

import json
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from rich.console import Console

from bench.figures import Bound, Figure
from bench.report import Report
from bench.scale.compare import FEW_MS, FLOOR_MS, PER_CALL, PER_PAGE, Operation, judge
from bench.scale.sizes import SMALL, YARDSTICK
from dispatcher.errors import PolicyInvalid
from project.time_limit import GaveUp, within

FORM = {"name", "ours", "reference", "unit", "ratio", "bound", "floor", "ok", "note"}


def figure(ours: float | None = 1.0, *, side: Bound = Bound.AT_MOST, floor: float = 0.0, name: str = "a") -> Figure:
    """Return a figure against 1 ms."""
    return Figure(name=name, ours=ours, reference=1.0, unit="ms", side=side, bound=1.2, floor=floor)


def judged(ours: list[float], reference: list[float], **options: Any) -> Figure:
    return judge(Operation(name="send", do=lambda _: None, **options), ours, reference)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "scale.json"


@pytest.fixture
def printed() -> StringIO:
    return StringIO()


@pytest.fixture
def report(path: Path, printed: StringIO) -> Report:
    return Report(Console(file=printed, width=160), path)


def stored(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text()))


@pytest.mark.parametrize(
    ("given", "is_ok"),
    [
        (figure(1.2), True),
        (figure(1.21), False),
        (figure(1.2, side=Bound.AT_LEAST), True),
        (figure(1.19, side=Bound.AT_LEAST), False),
        (figure(None), False),
        (figure(None, side=Bound.AT_LEAST), False),
        # A difference up to the floor is none, whatever the ratio is.
        (figure(1.5, floor=0.5), True),
        (figure(1.51, floor=0.5), False),
        (figure(0.9, side=Bound.AT_LEAST, floor=0.5), False),
    ],
)
def test_a_ratio_keeps_its_bound_up_to_the_bound_itself(given: Figure, *, is_ok: bool) -> None:
    assert given.ok is is_ok


def test_an_operation_is_judged_by_the_medians_without_the_first_samples_where_there_are_enough() -> None:
    few = judged([30, 10, 11], [9, 40, 10])
    assert (few.ours, few.reference, few.bound) == (10.5, 25, PER_CALL)
    many = judged([*[99.0] * 6, *[10.0] * 6], [*[99.0] * 6, *[20.0] * 6])
    assert (many.ours, many.reference) == (10, 20)
    single = judged([60_000], [40], bound=PER_PAGE)
    assert (single.ours, single.reference, single.ok) == (60_000, 40, False)


def test_the_floor_is_only_for_what_takes_a_few_milliseconds() -> None:
    assert judged([1.0 + FLOOR_MS], [1.0]).ok
    assert not judged([FEW_MS * PER_CALL + FLOOR_MS], [FEW_MS]).ok
    assert not judged([1.0 + FLOOR_MS], [1.0], unit="ms/1k rows").ok


def test_what_takes_too_long_is_given_up_even_by_code_that_survives_failures() -> None:
    def survive() -> None:
        try:
            sleep(30)
        except Exception:  # noqa: BLE001 -- as a hook does that logs a failure and goes on
            sleep(30)

    began = monotonic()
    with pytest.raises(GaveUp), within(0.05):
        survive()
    assert monotonic() - began < 10


def test_what_is_quick_is_not_given_up_afterwards() -> None:
    with within(0.05):
        pass
    sleep(0.1)


def test_a_figure_that_is_given_up_or_fails_is_short_says_why_and_the_next_one_is_measured(
    report: Report, path: Path, printed: StringIO
) -> None:
    def fail() -> Figure:
        raise PolicyInvalid("rate", "has no period.\nGive one.")

    threads = threading.active_count()
    report.measure("slow", lambda: sleep(30), limit=0.05)  # type: ignore[arg-type,func-returns-value]
    report.measure("send", fail, limit=30)
    report.measure("quick", lambda: figure(name="quick"), limit=30)
    slow, failed, quick = stored(path)
    assert (slow["name"], slow["ok"], slow["ratio"], slow["note"]) == ("slow", False, None, "gave up after 0.05 s")
    assert (failed["ok"], failed["note"]) == (False, "PolicyInvalid: rate: has no period.")
    assert "short PolicyInvalid: rate: has no period." in printed.getvalue()
    assert (quick["name"], quick["ok"], quick["note"]) == ("quick", True, "")
    assert not report.is_ok
    assert threading.active_count() == threads


def test_each_figure_is_stored_and_printed_as_it_is_measured(report: Report, path: Path, printed: StringIO) -> None:
    seen = []

    def figures() -> Iterator[Figure]:
        for name in ("a", "b", "c"):
            seen.append(([each["name"] for each in stored(path)], printed.getvalue().count(" ok")))
            yield figure(name=name)

    assert report.measure_all("all", figures(), limit=30)
    assert seen == [([], 0), (["a"], 1), (["a", "b"], 2)]
    assert report.is_ok


def test_figures_end_with_the_first_that_fails(report: Report, path: Path) -> None:
    def figures() -> Iterator[Figure]:
        yield figure(name="a")
        raise TimeoutError

    assert not report.measure_all("limits", figures(), limit=30)
    assert [(each["name"], each["ok"]) for each in stored(path)] == [("a", True), ("limits", False)]


def test_what_an_earlier_run_has_stored_is_forgotten(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('["old"]')
    assert not Report(Console(file=StringIO()), path).is_ok
    assert stored(path) == []


def test_both_benchmarks_store_figures_in_one_form(report: Report, path: Path) -> None:
    report.add(judged([1.0], [1.0]))
    report.add(figure())
    assert {frozenset(each) for each in stored(path)} == {frozenset(FORM)}


def test_the_yardstick_is_as_large_as_documented() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "explanation" / "benchmarks.md").read_text()
    for size in (YARDSTICK, SMALL):
        for number in (size.tenants, size.waiting, size.ended):
            assert f"{number:,}" in page
    assert YARDSTICK.tenth().waiting * 10 == YARDSTICK.waiting
