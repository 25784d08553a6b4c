"""What runs a call's `call_data`: the HTTP methods, and the handlers that a project registers."""

from collections.abc import Callable, Mapping
from http import HTTPMethod
from typing import Any, Final

from dispatcher.conf import conf
from dispatcher.errors import CallInvalid, RateLimited, UnknownMethod
from dispatcher.lifecycle.run import retry_after

Handler = Callable[..., Any]

_HTTP: Final = frozenset(method.lower() for method in HTTPMethod if method not in {"CONNECT", "TRACE"})
_FIELDS: Final = ("url", "params", "data", "json", "headers", "cookies", "files", "timeout", "allow_redirects")
"""What the params of an HTTP request may have: what else `requests` takes reaches files and proxies of the worker."""
_LONGEST_S: Final = 3_600
"""The longest `timeout` of an HTTP request."""
_FORM: Final = 'give {"method": "post", "params": {"url": ...}}, or the name of a registered handler as method.'
registered: Final[dict[str, Handler]] = {}


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
    if method.lower() in _HTTP:
        return _request(method, params)
    raise UnknownMethod(method, sorted({*registered, *_HTTP}))


def check(call_data: object) -> None:
    """Check what can be known at the send: the form, and the address of an HTTP request.

    Raises CallInvalid naming what is missing or unknown. A handler may be registered in the worker alone.
    """
    if not isinstance(call_data, Mapping):
        raise CallInvalid("call_data", f"{type(call_data).__name__} must be a mapping; {_FORM}")
    if unknown := [name for name in call_data if name not in ("method", "params")]:
        raise CallInvalid(f"call_data.{unknown[0]}", f"is not known here; {_FORM}")
    method, params = call_data.get("method"), call_data.get("params", {})
    if not isinstance(method, str) or not method:
        raise CallInvalid("call_data.method", f"{method!r} must be a name; {_FORM}")
    if not isinstance(params, Mapping):
        raise CallInvalid("call_data.params", f"{type(params).__name__} must be a mapping of names to values.")
    if method in registered or method.lower() not in _HTTP:
        return
    if not (isinstance(params.get("url"), str) and params["url"]):
        raise CallInvalid("call_data.params.url", f"is missing; {method} is an HTTP request: name its address.")
    if unknown := [name for name in params if name not in _FIELDS]:
        raise CallInvalid(f"call_data.params.{unknown[0]}", f"is not known here; known are {', '.join(_FIELDS)}.")
    timeout = params.get("timeout", _LONGEST_S)
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= _LONGEST_S:
        raise CallInvalid("call_data.params.timeout", f"{timeout!r} must be a number above 0, up to {_LONGEST_S} (s).")


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
