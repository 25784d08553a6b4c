"""Send two calls in two traces, the second of which waits for the first, run them in a worker, and print the spans.

    python -m tests.flows.traced opentelemetry direct
    python -m tests.flows.traced sentry broker

A program of its own, since an SDK patches Celery for as long as the process lives.
"""

# ruff: noqa: PLC0415 -- an SDK must be set up before Celery's worker is imported

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import django

Span = dict[str, str | None]
"""name, trace, id, parent, and the id of the call."""
Tracing = tuple[Callable[[str], AbstractContextManager[Any]], Callable[[], list[Span]]]
"""How to open a sender's span of a name, and how to read the spans that have ended."""


def opentelemetry() -> Tracing:
    """Set up OpenTelemetry as its documentation says."""
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()

    def read(span: ReadableSpan) -> Span:
        return {
            "name": span.name,
            "trace": f"{span.context.trace_id:032x}",
            "id": f"{span.context.span_id:016x}",
            "parent": f"{span.parent.span_id:016x}" if span.parent else None,
            "call": str((span.attributes or {}).get("messaging.message.id")),
        }

    return trace.get_tracer("tests").start_as_current_span, lambda: [*map(read, exporter.get_finished_spans())]


def sentry() -> Tracing:
    """Set up Sentry as its documentation says; what it would post is kept."""
    import sentry_sdk
    from sentry_sdk.envelope import Envelope
    from sentry_sdk.integrations.celery import CeleryIntegration
    from sentry_sdk.transport import Transport

    events: list[dict[str, Any]] = []

    class Kept(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            if (event := envelope.get_transaction_event()) is not None:
                events.append(dict(event))

    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=Kept,
        traces_sample_rate=1.0,
        auto_enabling_integrations=False,
        integrations=[CeleryIntegration()],
    )

    @contextmanager
    def sender(name: str) -> Iterator[None]:
        with sentry_sdk.isolation_scope(), sentry_sdk.start_transaction(name=name, op="http.server"):
            yield

    def read() -> list[Span]:
        return [
            {
                "name": f"{span['op']} {event['transaction']}",
                "trace": span["trace_id"],
                "id": span["span_id"],
                "parent": span.get("parent_span_id"),
                "call": event["tags"].get("celery_task_id") if "tags" in event else None,
            }
            for event in events
            for span in (event["contexts"]["trace"], *event["spans"])
        ]

    return sender, read


def main(kind: str, delivery: str) -> None:
    """Print the calls' ids, and the spans, as JSON."""
    django.setup()
    span, spans = {"opentelemetry": opentelemetry, "sentry": sentry}[kind]()

    from celery.contrib.testing.worker import start_worker
    from django.conf import settings

    from dispatcher.models import CallQueue, Queue, RateLimitKey
    from dispatcher.states import State
    from tests.flows.sample_tasks import app, echo

    # Admit before there is a worker, so that it is the worker that lets the second call in.
    settings.DISPATCHER = {**settings.DISPATCHER, "queue_grace": None, "delivery": {"*": delivery}}
    app.set_current()
    RateLimitKey.objects.declare("traced", concurrency=1)
    calls = {}
    for name in ("first", "second"):
        with span(name):
            calls[name] = CallQueue.objects.send(echo, args=[name], keys=["traced"])
    waiting = CallQueue.objects.get(id=calls["second"].id).state
    options = {"pool": "solo", "queues": [settings.QUEUE], "loglevel": "WARNING"}
    # With RabbitMQ a worker in a thread looks whether it is to stop only when its connection wakes it.
    with start_worker(app, perform_ping_check=False, shutdown_timeout=75, **options):
        until = time.monotonic() + 30
        while CallQueue.objects.exclude(state=State.COMPLETED).exists() and time.monotonic() < until:
            time.sleep(0.05)
    ended = list(CallQueue.objects.values_list("state", flat=True))
    found = {
        "delivery": Queue.objects.get(name=settings.QUEUE).delivery,
        "waiting": waiting,
        "ended": ended,
        "calls": {name: str(call.id) for name, call in calls.items()},
        "spans": spans(),
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
