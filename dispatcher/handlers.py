"""What runs a call's `call_data`: the HTTP methods, and the handlers that a project registers."""

from collections.abc import Callable
from typing import Any

from dispatcher.conf import conf
from dispatcher.errors import RateLimited, UnknownMethod
from dispatcher.lifecycle.run import retry_after
from dispatcher.methods import HTTP, Handler, check, registered


def register(method: str) -> Callable[[Handler], Handler]:
    """Register a handler for `call_data["method"]`; it is called with `call_data["params"]` as keywords."""

    def remember(handler: Handler) -> Handler:
        registered[method] = handler
        return handler

    return remember


def run(call_data: dict[str, Any]) -> Any:
    """Run a call's handler and return its result. Raises CallInvalid or UnknownMethod."""
    check(call_data)
    method, params = call_data["method"], call_data.get("params", {})
    if method in registered:
        return registered[method](**params)
    if method.lower() in HTTP:
        return _request(method, params)
    raise UnknownMethod(method, sorted({*registered, *HTTP}))


def _request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Make an HTTP call with `requests` (extra `http`); a status from 400 raises, and 429 waits as it says.

    The sender chooses the address: it must be public or allowed. Its answer blocks keys for `http_max_block` at most.
    """
    from dispatcher import outbound  # noqa: PLC0415 -- an extra: only who makes HTTP calls needs it

    response = outbound.request(method, **params)
    if (wait := retry_after(response)) is not None:
        raise RateLimited(min(wait, conf().http_max_block))
    response.raise_for_status()
    return {"status": response.status_code, "text": response.text}
