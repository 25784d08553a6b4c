"""The course of a run: load and faults, then no more of either, then all must end and be found in order."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from django.db import close_old_connections
from django.db.models import Count

from dispatcher.models import CallQueue
from dispatcher.states import TERMINAL
from project.processes import Stack
from trials import notes
from trials.chaos.faults import Faults
from trials.chaos.plan import QUEUES, Fault
from trials.chaos.records import gather
from trials.chaos.servers import Servers
from trials.chaos.supervisor import Supervisor
from trials.chaos.verdict import Struck, Verdict, judge

SERVED = 30.0
"""Seconds for which the load goes on at the most when the last fault is over, so that there is something to serve."""
AT_ONCE = 32
DRAIN = 90.0
SETTLE = 1.5
"""After the last call has ended: whatever runs a second time would have started by then."""
LOOK_EVERY = 0.25
SAY_EVERY = 10.0
BY_KIND = ("meta__kind", "state")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run came to: the verdict, and what the harness saw on the way; `drained` in seconds."""

    verdict: Verdict
    struck: Sequence[Struck]
    began: float
    drained: float
    restarts: Mapping[str, int]
    remarks: Sequence[str]

    def as_json(self) -> dict[str, object]:
        """Return it for tools; recovery in seconds, faults with their times from the beginning of the schedule."""
        verdict = self.verdict
        counted = ("sent", "lost", "double_starts", "violations", "wrong_attempts", "wrong_ends", "late")
        return {
            "ok": verdict.is_ok,
            **{name: getattr(verdict, name) for name in counted},
            "longest_way_s": round(verdict.longest_way_s, 3),
            "recovery_s": verdict.recovery,
            "faults": [self._as_json(struck) for struck in self.struck],
            "failures": list(verdict.failures),
            "drained_s": round(self.drained, 1),
            "restarts": dict(self.restarts),
            "remarks": list(self.remarks),
        }

    def _as_json(self, struck: Struck) -> dict[str, object]:
        recovered = self.verdict.recovered[struck.fault.number]
        return {
            **asdict(struck.fault),
            "began_s": round(struck.began - self.began, 3),
            "over_s": round(struck.over - self.began, 3),
            "recovered_s": None if recovered is None else round(recovered, 3),
        }


class Trial:
    """One run: a context that ends its processes on the way out, and clears a broker that is not ours."""

    def __init__(self, stack: Stack, servers: Servers, *, witness: str, say: Callable[[str], None]) -> None:
        """Prepare; nothing is started yet. `say` prints a line."""
        self.notes = Path(stack.env["CHAOS_NOTES"])
        self.supervisor = Supervisor(stack=stack, run=servers.run, has_messages=servers.has_messages)
        self.faults = Faults(supervisor=self.supervisor, servers=servers, notes=self.notes)
        self.servers, self.witness, self.say = servers, witness, say

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End every process, and then empty the broker."""
        self.supervisor.close()
        self.servers.clear()

    def run(self, plan: Sequence[Fault], *, seconds: float) -> Outcome:
        """Go through the plan, let all calls end, and return what came of it."""
        self.supervisor.open()
        began = time.monotonic()
        struck = self._strike(plan, began=began, seconds=seconds)
        self._wait_served(max([began, *(each.over for each in struck)]))
        self.supervisor.stop_senders()
        self.say("No more faults and nothing more sent: what is left must end now")
        began_draining = time.monotonic()
        if left := self._drain():
            self.say(f"{left} calls have not ended in {DRAIN:g} s")
        drained = time.monotonic() - began_draining
        time.sleep(SETTLE)
        close_old_connections()
        return Outcome(
            verdict=judge(gather(self.notes, struck, witness=self.witness)),
            struck=struck,
            began=began,
            drained=drained,
            restarts=self.supervisor.restarts,
            remarks=self.faults.remarks,
        )

    def _strike(self, plan: Iterable[Fault], *, began: float, seconds: float) -> list[Struck]:
        struck: list[Future[Struck]] = []
        with ThreadPoolExecutor(AT_ONCE) as threads:
            for fault in plan:
                time.sleep(max(0.0, began + fault.at - time.monotonic()))
                self.say(describe(fault))
                struck.append(threads.submit(self.faults.strike, fault))
            time.sleep(max(0.0, began + seconds - time.monotonic()))
        return [each.result() for each in struck]

    def _wait_served(self, since: float) -> None:
        """Wait until every queue is served again, or the time for it is over."""
        deadline = time.monotonic() + SERVED
        while time.monotonic() < deadline:
            time.sleep(LOOK_EVERY)
            lines = notes.read(self.notes / notes.BEGINS)
            if len({line["queue"] for line in lines if line["what"] == "begin" and line["at"] > since}) == len(QUEUES):
                return

    def _drain(self) -> int:
        """Wait until every call has ended, and say now and then what has not; return how many when the time is over."""
        deadline, say_at = time.monotonic() + DRAIN, time.monotonic() + SAY_EVERY
        while (left := _unfinished()) and time.monotonic() < deadline:
            if time.monotonic() > say_at:
                say_at += SAY_EVERY
                self.say("          still to end: " + ", ".join(f"{count} {what}" for what, count in left.items()))
            time.sleep(LOOK_EVERY)
        return sum(left.values())


def describe(fault: Fault) -> str:
    """Return a fault as a line."""
    lasts = f", for {fault.seconds:g} s" if fault.seconds else ""
    return f"{fault.at:6.1f} s  {fault.target}: {fault.words}{lasts}"


def _unfinished() -> dict[str, int]:
    """Return how many calls have not ended, by kind and state."""
    close_old_connections()
    unfinished = CallQueue.objects.exclude(state__in=TERMINAL).values_list(*BY_KIND)
    return {f"{kind} {state}": count for kind, state, count in unfinished.annotate(Count("id")).order_by(*BY_KIND)}
