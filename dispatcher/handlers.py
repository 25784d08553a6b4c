"""What runs a call's `call_data`: the HTTP methods, and the handlers that a project registers."""

from collections.abc import Callable
from typing import Any, Final

from dispatcher.errors import UnknownMethod
from dispatcher.methods import HTTP, Handler, check, registered

_TIMEOUT_S: Final = 30


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
    """Make an HTTP call with `requests` (extra `http`); a status from 400 raises, and 429 waits as it says."""
    import requests  # noqa: PLC0415 -- an extra: only who makes HTTP calls needs it

    timeout, rest = params.get("timeout", _TIMEOUT_S), {k: v for k, v in params.items() if k != "timeout"}
    response = requests.request(method, timeout=timeout, **rest)
    response.raise_for_status()
    return {"status": response.status_code, "text": response.text}
