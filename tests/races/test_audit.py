"""The audit beside a running system: no findings where nothing is wrong, and no repair of what is sound."""

import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from dispatcher import api, engine
from dispatcher.audit import Report, audit, repairs
from dispatcher.lifecycle import heartbeat
from dispatcher.models import CallQueue, RateLimitKey, Slot
from dispatcher.request import Call
from dispatcher.states import TERMINAL, State
from tests.builders import HERE
from tests.races import audit as by_force
from tests.races.lockstep import POLL, Mailbox, actors, at_once, concurrent, eventually
from tests.races.traffic import declare_tenants, execute, in_flight

pytestmark = concurrent

TIMES = 20
TENANTS = 5
BACKLOG = 300
HANGS = 100.0
SOON = timedelta(seconds=5)


def produce(over: Event) -> None:
    """Send to tenants that share keys of every kind, singly and in bulk, until the audits are done."""
    while not over.is_set():
        for number in range(TENANTS):
            keys = [f"tenant:{number}", ("few", "some", "spaced")[number % 3]]
            CallQueue.objects.send("noop", keys=keys, priority=number % 2)
            CallQueue.objects.send_many([Call(task="noop", keys=keys)] * 3)
        eventually(lambda: CallQueue.objects.waiting().count() < BACKLOG or over.is_set(), within=HANGS)


def look(reports: list[Report], over: Event) -> None:
    """Audit again and again, until more calls than that have ended: on a busy machine audits are quicker."""
    try:
        while len(reports) < TIMES or CallQueue.objects.filter(state__in=TERMINAL).count() <= TIMES:
            reports.append(audit())
    finally:
        over.set()


def work(over: Event) -> None:
    """Be a worker until the audits are done."""
    mailbox = Mailbox()
    while not over.is_set():
        message = mailbox.take()
        if message is None:
            time.sleep(POLL)
        else:
            execute(*message)


def serve(is_over: Callable[[], bool]) -> None:
    """Be a dispenser until the audits are done."""
    while not is_over():
        engine.tick()


def stir(over: Event) -> None:
    """Change limits, and pause, override and cancel, until the audits are done."""
    while not over.is_set():
        api.limit("few", {"concurrency": 1})
        api.override("some", until=timezone.now() + SOON, rate=(40, 1))
        api.pause("spaced")
        api.cancel(CallQueue.objects.waiting().values_list("id", flat=True)[:5])
        api.resume("spaced")
        api.limit("few", {"concurrency": 3})


@pytest.mark.parametrize(
    "given", [{}, {"queue_grace": 600, "dispatch_ahead": 4}], ids=["limits", "a queue that is full"]
)
def test_a_busy_system_yields_nothing(given: dict[str, int], settings: Any) -> None:
    settings.DISPATCHER = given
    heartbeat.record(HERE, [])
    declare_tenants(TENANTS)
    RateLimitKey.objects.declare("few", concurrency=3)
    RateLimitKey.objects.declare("some", rate=(20, 1))
    RateLimitKey.objects.declare("spaced", throttle=(40, 1))
    reports: list[Report] = []
    over = Event()
    others = [partial(part, over) for part in (produce, stir, work, work)]
    at_once(partial(look, reports, over), partial(serve, over.is_set), *others)
    broken = [found for report in reports for found in report.found if found.count]
    assert broken == []
    by_force.audit(has_ended=False, limits_changed=True)


def test_the_audit_by_force_reads_all_tables_at_one_moment() -> None:
    started: list[CallQueue] = []

    def start_behind_the_calls(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        if "dispatcher_slot" in sql and not started:
            started.extend(starter.do(in_flight))
        return execute(sql, *rest)

    with actors(1) as (starter,), connection.execute_wrapper(start_behind_the_calls):
        by_force.audit(has_ended=False)
    assert started


def test_a_slot_whose_call_is_admitted_while_it_is_to_be_freed_stays() -> None:
    (call,) = in_flight()
    CallQueue.objects.filter(id=call.id).update(state=State.AVAILABLE, ticket=None)
    (orphan,) = (found for found in audit(settle=timedelta(0)).found if found.check.name == "slot_without_call")
    with actors(2) as (admitter, repairer):
        admitter.open()
        admitter.do(CallQueue.objects.filter(id=call.id).update, state=State.DISPATCHED, ticket=uuid4())
        assert repairer.do(repairs.free_orphans, orphan.findings) == 0
        admitter.commit()
    assert repairs.free_orphans(orphan.findings) == 0
    assert Slot.objects.filter(call=call).exists()


def test_repairs_at_once_repair_each_breach_once() -> None:
    calls = in_flight(count=10)
    Slot.objects.all().delete()
    reports: list[Report] = []
    at_once(*[lambda: reports.append(audit(repair=True))] * 3, partial(serve, lambda: len(reports) == 3))
    assert [found for report in reports for found in report.found if found.count] == []
    repaired = Counter(found.check.name for report in reports for found in report.found for _ in range(found.repaired))
    assert repaired == {"call_without_slot": len(calls)}
    assert not CallQueue.objects.exclude(id__in=[call.id for call in calls]).exists()
    by_force.audit(has_ended=False)
