"""What happens in the demo: the shop sends, the limits let through, and at the end all say what they saw."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from dispatcher.models import CallQueue, Queue, Slot
from dispatcher.reports import rate_limit_status
from dispatcher.states import TERMINAL, Delivery
from project.demo import orders, screen
from project.demo.summary import Ended, Run, Sent, Summary, judge
from project.processes import Stack
from project.witness.child import read

LOOK_EVERY = 0.25
# After the last call is done: whatever runs a second time would have started by then.
SETTLE = 1.0


def run(console: Console, stack: Stack, witness: str, *, began: float, deadline: float) -> Summary:
    """Send, watch until all is done or the `deadline` (monotonic) passes, and return the verdict."""
    with screen.showing(console) as show:
        watch = Watch(stack=stack, show=show, began=time.monotonic(), deadline=deadline)
        opened = orders.open_up()
        watch.until_ended(opened)
        placed = orders.place(opened)
        watch.until_ended(placed.to_run)
    time.sleep(SETTLE)
    return judge(recall(placed, witness, seconds=time.monotonic() - began))


@dataclass(frozen=True, kw_only=True)
class Watch:
    """Shows each key filling and draining; times are monotonic."""

    stack: Stack
    show: screen.Show
    began: float
    deadline: float

    def until_ended(self, sent: Sequence[str]) -> None:
        """Watch until every call has ended, or the deadline passes; ChildFailed if a process does."""
        while time.monotonic() < self.deadline:
            self.stack.ensure_running()
            ended = CallQueue.objects.filter(pk__in=sent, state__in=TERMINAL).count()
            seconds = time.monotonic() - self.began
            self.show(screen.Board(keys=rate_limit_status(), ended=ended, sent=len(sent), seconds=seconds))
            if ended == len(sent):
                return
            time.sleep(LOOK_EVERY)


def recall(placed: Sent, witness: str, *, seconds: float) -> Run:
    """Gather what the rows and the witness say."""
    known = CallQueue.objects.filter(pk__in=[*placed.to_run, *placed.rolled_back])
    return Run(
        calls=placed,
        failures=orders.FAILURES,
        rows={
            str(pk): Ended(state=state, attempt=attempt)
            for pk, state, attempt in known.values_list("pk", "state", "attempt")
        },
        deliveries=_deliveries(placed.to_run),
        slots_left=Slot.objects.filter(call__in=known).count(),
        limits=read(witness, "limits"),
        record=read(witness, "record"),
        seconds=seconds,
    )


def _deliveries(sent: Sequence[str]) -> Mapping[str, int]:
    delivery = dict(Queue.objects.values_list("name", "delivery"))
    queues = CallQueue.objects.filter(pk__in=sent).values_list("queue", flat=True)
    # A queue of the broker needs no row.
    return dict(Counter(delivery.get(queue, Delivery.BROKER.value) for queue in queues))
