"""What threads do in the races: send, dispense, work."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from uuid import UUID

from dispatcher import engine
from dispatcher.ending import completed
from dispatcher.lifecycle import send
from dispatcher.lifecycle.finish import Ended
from dispatcher.models import CallQueue, RateLimitKey
from dispatcher.request import Call
from dispatcher.states import TERMINAL, State
from tests.races.lockstep import DEADLINE, POLL, Mailbox


def declare_tenants(count: int) -> None:
    """Make keys without limits, so that calls which name them have lanes of their own."""
    for number in range(count):
        RateLimitKey.objects.declare(f"tenant:{number}")


def write(keys: Iterable[Sequence[str]], *, queue: str = "celery") -> list[CallQueue]:
    """Write calls as a sender does that dies with its commit: they are there, and noted, and no trip comes."""
    return send.write([send.draft(Call(keys=names), task="noop", queue=queue) for names in keys]).calls


def state_of(call: CallQueue) -> str:
    """Return the state of a call as it is now."""
    return CallQueue.objects.get(id=call.id).state


def execute(call_id: UUID, ticket: UUID) -> None:
    """Run a call whose task does nothing."""
    engine.execute(call_id, ticket, lambda: None)


def work(between: Callable[[], int], *, run: Callable[[UUID, UUID], object] = execute) -> int:
    """Be a worker until every call has ended, and do something else when no message is there; return how many ran."""
    mailbox = Mailbox()
    deadline = time.monotonic() + DEADLINE
    ran = 0
    while True:
        message = mailbox.take()
        if message is not None:
            run(*message)
            ran += 1
        elif not CallQueue.objects.exclude(state__in=TERMINAL).exists():
            return ran
        elif not between():
            time.sleep(POLL)
        assert time.monotonic() < deadline, "the calls did not end in time"


def in_flight(*keys: str, count: int = 1) -> list[CallQueue]:
    """Send calls that their limits let in at once, and return them as the admission left them."""
    sent = CallQueue.objects.send_many([Call(task="noop", keys=keys)] * count)
    admitted = [CallQueue.objects.get(id=call.id) for call in sent]
    assert all(call.state == State.DISPATCHED for call in admitted)
    return admitted


def ended(call: CallQueue) -> Ended:
    """Return that the task of a call in flight has returned."""
    assert call.ticket is not None
    return Ended(call_id=call.id, ticket=call.ticket, claim_id=None, ending=completed(None))


dispense_and_work = partial(work, engine.dispense)
tick_and_work = partial(work, engine.tick)
