"""Forms that give limits, and the policy that they give."""

from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from dispatcher.errors import PolicyInvalid
from dispatcher.limits.durations import format_duration, parse_duration
from dispatcher.limits.policy import Policy


def limits_of(values: dict[str, Any]) -> dict[str, Any]:
    """Return form values as a policy's fields."""

    def rate(name: str) -> tuple[int, Any] | None:
        limit, period = values.get(f"{name}_limit"), values.get(f"{name}_period")
        return None if limit is None or period is None else (limit, period)

    return {
        "concurrency": values.get("concurrency"),
        "per_worker": values.get("per_worker"),
        "rate": rate("rate"),
        "throttle": rate("throttle"),
        **({"fair_by": values["fair_by"] or None, "weight": values.get("weight")} if "fair_by" in values else {}),
        **({"observe": values["is_observed"]} if "is_observed" in values else {}),
    }


class PeriodField(forms.CharField):
    """A duration as ISO 8601, or second, minute, hour, day."""

    def prepare_value(self, value: Any) -> Any:
        """Show a stored duration as ISO 8601."""
        return value if value is None or isinstance(value, str) else format_duration(value)

    def to_python(self, value: Any) -> Any:
        """Read the duration. Raises ValidationError naming the remedy."""
        text = super().to_python(value)
        if not text:
            return None
        try:
            return parse_duration(text)
        except PolicyInvalid as error:
            raise ValidationError(str(error)) from error


class LimitsForm(forms.Form):
    """The limits of a policy; both fields of a limit are empty if there is none."""

    concurrency = forms.IntegerField(min_value=0, required=False, help_text="Maximum in flight; 0 starts nothing.")
    per_worker = forms.IntegerField(
        min_value=1,
        required=False,
        help_text="Maximum in flight in one worker; for queues that are delivered directly or over HTTP.",
    )
    rate_limit = forms.IntegerField(min_value=1, required=False, help_text="Starts in any window of the rate period.")
    rate_period = PeriodField(required=False, help_text="Such as PT1M.")
    throttle_limit = forms.IntegerField(min_value=1, required=False, help_text="Starts per period, evenly spaced.")
    throttle_period = PeriodField(required=False, help_text="Such as PT1S.")

    def clean(self) -> dict[str, Any]:
        """Validate the limits as a policy. The error names the field."""
        cleaned = super().clean() or {}
        for strategy in ("rate", "throttle"):
            given = [cleaned.get(f"{strategy}_limit"), cleaned.get(f"{strategy}_period")]
            if given.count(None) == 1 and not self.errors:
                self.add_error(f"{strategy}_limit", "Give both the limit and its period, or neither.")
        if not self.errors:
            try:
                Policy.parse(limits_of(cleaned))
            except PolicyInvalid as error:
                field = error.field.removeprefix("policy.").replace(".", "_")
                self.add_error(field if field in self.fields else None, str(error))
        return cleaned


class ConfirmedForm(LimitsForm):
    """Limits that must be confirmed if some waiting calls cost more than they ever allow."""

    accept_oversized = forms.BooleanField(
        required=False,
        label="Accept oversized calls",
        help_text="Store the limits although some waiting calls never fit them: those wait alone until they do.",
    )

    def ask_to_confirm(self, oversized: int) -> None:
        """Refuse limits that so many calls never fit, until the user has confirmed them."""
        if oversized and not self.cleaned_data.get("accept_oversized"):
            self.add_error(
                "accept_oversized",
                f"{oversized:,} waiting calls cost more than these limits ever allow. Raise the limits, or tick this.",
            )
