"""The health check of the web server, for containers and load balancers."""

from collections.abc import Callable
from http import HTTPStatus

from django.db import Error, connection
from django.http import HttpRequest, HttpResponse

PATH = "/healthz"


class HealthCheckMiddleware:
    """Answer /healthz: 200, or 503 if the database does not answer.

    It is the first middleware, so that neither ALLOWED_HOSTS nor the redirect to HTTPS applies.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer the health check, and pass on every other request."""
        return _check() if request.path == PATH else self.get_response(request)


def _check() -> HttpResponse:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error:
        return HttpResponse("The database does not answer.", "text/plain", HTTPStatus.SERVICE_UNAVAILABLE)
    return HttpResponse("ok", "text/plain")
