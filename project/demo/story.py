"""What happens in the demo: the shop sends, the limits let through, and at the end all say what they saw."""

import time
from collections.abc import Sequence
from uuid import UUID

from rich.console import Console

from dispatcher.models import CallQueue, Slot
from dispatcher.reports import rate_limit_status
from dispatcher.states import TERMINAL
from project.demo import orders, screen
from project.demo.summary import Ended, Run, Summary, judge
from project.processes import Stack
from project.witness.child import read

LOOK_EVERY = 0.25
# After the last call is done: whatever runs a second time would have started by then.
SETTLE = 1.0


def tell(console: Console, stack: Stack, witness: str, *, began: float, deadline: float) -> Summary:
    """Send, watch until all is done or the `deadline` (monotonic) passes, and return the verdict."""
    placed = orders.place()
    watch(console, stack, placed.sent, deadline=deadline)
    time.sleep(SETTLE)
    return judge(recall(placed, witness, seconds=time.monotonic() - began))


def watch(console: Console, stack: Stack, sent: Sequence[UUID], *, deadline: float) -> None:
    """Show each key filling and draining until every call has ended."""
    began = time.monotonic()
    with screen.showing(console) as show:
        while time.monotonic() < deadline:
            stack.ensure_running()
            ended = CallQueue.objects.filter(pk__in=sent, state__in=TERMINAL).count()
            show(screen.Board(keys=rate_limit_status(), ended=ended, sent=len(sent), seconds=time.monotonic() - began))
            if ended == len(sent):
                return
            time.sleep(LOOK_EVERY)


def recall(placed: orders.Orders, witness: str, *, seconds: float) -> Run:
    """Gather what the rows and the witness say."""
    known = CallQueue.objects.filter(pk__in=[*placed.sent, *placed.rolled_back])
    return Run(
        flood=_texts(placed.flood),
        drip=_texts(placed.drip),
        flaky=_texts(placed.flaky),
        others=_texts(placed.others),
        rolled_back=_texts(placed.rolled_back),
        failures=orders.FAILURES,
        rows={
            str(pk): Ended(state=state, attempt=attempt)
            for pk, state, attempt in known.values_list("pk", "state", "attempt")
        },
        slots_left=Slot.objects.filter(call__in=known).count(),
        limits=read(witness, "limits"),
        record=read(witness, "record"),
        seconds=seconds,
    )


def _texts(ids: Sequence[UUID]) -> list[str]:
    return [str(call) for call in ids]
