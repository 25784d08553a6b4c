"""Do a little of everything, and print as JSON what came of it."""

import json
import sys
from typing import Any

import django

django.setup()

from django.apps import apps  # noqa: E402 -- Django must be set up first
from django.contrib import admin  # noqa: E402
from django.contrib.auth import get_user_model  # noqa: E402
from django.db import connections  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import reverse  # noqa: E402
from django_celery_beat.models import PeriodicTask  # noqa: E402

from dispatcher import api, engine  # noqa: E402
from dispatcher.models import CallQueue, Queue, RateLimitKey  # noqa: E402
from dispatcher.ojs.auth import make_token  # noqa: E402
from dispatcher.ojs.cron import (  # noqa: E402
    fire_cron,
    register_cron,
    set_cron_enabled,
)
from dispatcher.ojs.models import Cron  # noqa: E402

KEY = {"concurrency": "3", "rate_limit": "", "rate_period": "", "throttle_limit": "", "throttle_period": ""}


def tables(alias: str) -> list[str]:
    return [name for name in connections[alias].introspection.table_names() if name.startswith("dispatcher_")]


def sent() -> dict[str, Any]:
    first, second = (CallQueue.objects.send("noop", keys=["api"]) for _ in range(2))
    later = CallQueue.objects.send("noop", keys=["tenant:acme"])
    engine.tick()
    api.cancel([first.id])
    engine.tick()
    states = [CallQueue.objects.get(id=call.id).state for call in (first, second, later)]
    return {"states": states, "recovered": engine.recover(), "cleaned": engine.cleanup()}


def visited() -> dict[str, Any]:
    """Open the admin's pages of the dispatcher, and write through them."""
    boss = Client()
    boss.force_login(get_user_model().objects.create_superuser("boss", password="x"))  # noqa: S106 -- of a test
    pages = {}
    for model in filter(admin.site.is_registered, apps.get_models()):
        if (app := model._meta.app_label).startswith("dispatcher"):
            name = model._meta.model_name
            pages[name] = boss.get(reverse(f"admin:{app}_{name}_changelist")).status_code
    waiting = CallQueue.objects.send("noop", keys=["api"])
    pages["call"] = boss.get(reverse("admin:dispatcher_callqueue_change", args=[waiting.pk])).status_code
    found = boss.get(reverse("admin:dispatcher_callqueue_changelist"), {"q": "api"}).content.decode()
    boss.post(reverse("admin:dispatcher_ratelimitkey_add"), {"name": "made:by:hand", **KEY})
    boss.post(reverse("admin:dispatcher_ratelimitkey_changelist"), {"action": "pause", "_selected_action": _pk("api")})
    queue = {"name": "mail", "weight": "1", "on_full": "reject", "warn_at": "0.8", "delivery": "http"}
    boss.post(reverse("admin:dispatcher_queue_add"), queue)
    made = Queue.objects.filter(name="mail").exists()
    boss.post(reverse("admin:dispatcher_queue_delete", args=["mail"]), {"post": "yes"})
    return {
        "pages": pages,
        "is_found": str(waiting.pk) in found,
        "key": list(RateLimitKey.objects.filter(name="made:by:hand").values_list("concurrency", flat=True)),
        "is_paused": RateLimitKey.objects.get(name="api").is_paused,
        "queue_made_and_deleted": [made, not Queue.objects.filter(name="mail").exists()],
    }


def _pk(name: str) -> int:
    return RateLimitKey.objects.get(name=name).pk


def fired() -> dict[str, Any]:
    job = {"type": "noop", "args": [], "options": {"queue": "celery"}}
    cron = Cron(name="nightly", expression="0 3 * * *", timezone="UTC", job=job)
    is_new = register_cron(cron)
    call = fire_cron("nightly")
    set_cron_enabled("nightly", is_enabled=False)
    stored = Cron.objects.get()
    stored.delete()
    return {
        "is_new": is_new,
        "is_sent": CallQueue.objects.filter(id=call).exists(),
        "is_enabled": stored.is_enabled,
        "left": Cron.objects.count(),
    }


def pushed() -> dict[str, Any]:
    token = make_token("web", ["admin"])
    headers = {"Authorization": f"Bearer {token}"}
    client = Client(headers=headers)
    answer = client.post("/ojs/v1/jobs", {"type": "noop", "args": []}, content_type="application/json")
    listed = client.get("/ojs/v1/admin/jobs")
    crons_listed = client.get("/ojs/v1/cron")
    # No worker ticks here, and the audit comes next.
    engine.tick()
    return {"pushed": answer.status_code, "listed": listed.status_code, "crons": crons_listed.status_code}


json.dump(
    {
        "tables": {alias: len(tables(alias)) for alias in ("default", "calls")},
        "beat": {
            alias: sorted(PeriodicTask.objects.using(alias).values_list("name", flat=True))
            for alias in ("default", "calls")
        },
        "keys": sorted(RateLimitKey.objects.values_list("name", flat=True)),
        "sent": sent(),
        "visited": visited(),
        "fired": fired(),
        "pushed": pushed(),
    },
    sys.stdout,
)
