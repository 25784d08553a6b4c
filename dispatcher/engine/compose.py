"""Compose: turn what callers give into drafts, checked and with all that their messages will carry."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from uuid import UUID

from celery import current_app

from dispatcher import handlers
from dispatcher.errors import CallInvalid, ConfigurationError, FieldInvalid
from dispatcher.lifecycle import publish, send
from dispatcher.messages import capture, signature
from dispatcher.messages.signature import Sender, SendRequest
from dispatcher.request import Call

CALL_DATA_TASK: Final = "dispatcher.call"
"""The built-in task that runs a call's `call_data`."""


NO_APP: Final = "This process has no Celery app, so it would publish to the default broker of Celery."
IMPORT_APP: Final = "Import your Celery app in the __init__.py of your project."
_APP_MISSING: Final = f"{NO_APP} {IMPORT_APP}"


def has_app() -> bool:
    """Return whether this process has a Celery app of the project, and not only Celery's own fallback."""
    return current_app.main != "default" or bool(current_app.set_as_current)


def drafts(calls: Sequence[Call]) -> list[send.Draft]:
    """Return drafts of these calls. Raises CallInvalid or PolicyInvalid, then no message was captured.

    Raises ConfigurationError in a process without a Celery app.
    """
    sender = Sender()
    requests, checked = [], []
    try:
        for call in calls:
            requests.append(_request(call, sender))
            checked.append(_draft(requests[-1]))
    except FieldInvalid as error:
        if len(calls) > 1:
            error.index = len(checked)
            error.words += f" (calls[{error.index}])"
        raise
    if not capture.is_needed():
        return checked
    return [_draft(_captured(request, draft), draft.id) for request, draft in zip(requests, checked, strict=True)]


def check(call: Call) -> send.Draft:
    """Return the draft of a call that is to be sent later. Raises CallInvalid or PolicyInvalid."""
    return _draft(_request(call, Sender()))


def _request(call: Call, sender: Sender) -> SendRequest:
    if not isinstance(call, Call):
        raise CallInvalid("calls", f"{call!r} is no Call; give Call(task, args=[...], keys=[...]).")
    if not has_app() and (call.extras is None or call.extras.text() is None):
        raise ConfigurationError(_APP_MISSING)
    if (call.task is None) == (call.call_data is None):
        raise CallInvalid("task", "give either a task or call_data, such as {'method': 'post', 'params': {...}}.")
    if call.call_data is None:
        request = signature.read(call, sender)
        publish.fence(request.task)
        return request
    for field, value in (("args", call.args), ("kwargs", call.kwargs)):
        if value:
            raise CallInvalid(field, "can't be given together with call_data; put them into its params.")
    handlers.check(call.call_data)
    return signature.read(replace(call, task=CALL_DATA_TASK), sender)


def _draft(request: SendRequest, call_id: UUID | None = None) -> send.Draft:
    return send.draft(
        request.call,
        task=request.task,
        queue=request.queue,
        options=request.options,
        scheduled_in=request.scheduled_in,
        expires_in=request.expires_in,
        call_id=call_id,
    )


def _captured(request: SendRequest, draft: send.Draft) -> SendRequest:
    """Return the request with what the sender's context adds to its message."""
    call = request.call
    is_plain = call.call_data is None
    captured = capture.capture(
        request.task,
        (call.args or ()) if is_plain else [call.call_data],
        call.kwargs or {},
        task_id=draft.id,
        queue=draft.kind.queue,
        headers=call.headers or {},
        options=request.options,
    )
    if is_plain:
        call = replace(call, args=captured.args, kwargs=captured.kwargs)
    call = replace(call, headers=captured.headers or None)
    return replace(request, call=call, options=captured.options)
