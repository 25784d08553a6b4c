"""The URLs of the Open Job Spec: /ojs/manifest and /ojs/v1."""

from django.urls import URLPattern, path, re_path

from dispatcher.ojs.api import api, not_found, with_ojs_headers
from dispatcher.ojs.views import (
    admin,
    cron,
    dead_letters,
    events,
    jobs,
    pools,
    queues,
    rate_limits,
    system,
    webhooks,
    workers,
    workflows,
)

# Dead letters come before the admin's paths, where `stats` would be taken for the id of one.
VIEWS = (dead_letters, admin, cron, events, jobs, pools, queues, rate_limits, system, webhooks, workers, workflows)
for module in VIEWS:
    api.add_router("", module.router)

urlpatterns = [
    with_ojs_headers(path("ojs/manifest", system.manifest)),
    with_ojs_headers(path("ojs/v1/openapi.json", system.openapi)),
    *(
        with_ojs_headers(path(f"ojs/v1/{route.pattern}", route.callback))
        for route in api.urls[0]
        if isinstance(route, URLPattern)
    ),
    with_ojs_headers(re_path(r"^ojs/.*$", not_found)),
]
