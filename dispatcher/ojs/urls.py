"""The URLs of the Open Job Spec: /ojs/manifest and /ojs/v1."""

from django.urls import URLPattern, path, re_path

from dispatcher.ojs.api import api, not_found, with_ojs_headers
from dispatcher.ojs.views import admin, cron, events, jobs, queues, system, workers, workflows

# The admin comes before jobs, where `bulk` would be taken for the id of one.
for module in (admin, cron, events, jobs, queues, system, workers, workflows):
    api.add_router("/v1", module.router)
api.add_router("", system.root)

routes = [path(f"ojs/{route.pattern}", route.callback) for route in api.urls[0] if isinstance(route, URLPattern)]
urlpatterns = [with_ojs_headers(route) for route in [*routes, re_path(r"^ojs/.*$", not_found)]]
