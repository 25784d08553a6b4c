"""The forms of a key: its own limits, and those of an override."""

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from django import forms
from django.contrib.admin.widgets import AdminIntegerFieldWidget, AdminSplitDateTime
from django.core.exceptions import ValidationError
from django.utils import timezone

from dispatcher.errors import CallInvalid, PolicyInvalid
from dispatcher.fields import key_name
from dispatcher.models import RateLimitKey
from dispatcher.policy import Policy, format_duration, parse_duration

if TYPE_CHECKING:
    _ModelForm = forms.ModelForm[RateLimitKey]
else:
    _ModelForm = forms.ModelForm

_PAST: Final = "Give a time to come."

STRATEGIES: Final = ("concurrency", "rate", "throttle")


class PeriodField(forms.CharField):
    """A duration as ISO 8601, as second, minute, hour or day, or in seconds."""

    widget = forms.TextInput(attrs={"size": 12})

    def prepare_value(self, value: object) -> object:
        """Show a stored duration as ISO 8601."""
        return format_duration(value) if isinstance(value, timedelta) else value

    def has_changed(self, initial: object, data: object) -> bool:
        """Compare durations, and not how they are written."""
        return super().has_changed(self.prepare_value(initial), data)

    def to_python(self, value: Any) -> Any:
        """Read the duration. Raises ValidationError saying how to write one."""
        text = super().to_python(value)
        if not text:
            return None
        try:
            return parse_duration(float(text) if text.replace(".", "", 1).isdigit() else text)
        except PolicyInvalid as error:
            raise ValidationError(_problem(error)) from error


class LimitsForm(forms.Form):
    """The limits of a policy, each strategy empty where there is none."""

    concurrency = forms.IntegerField(
        widget=AdminIntegerFieldWidget,
        min_value=0,
        required=False,
        help_text="The most cost in flight at once. 0 lets nothing start; what runs goes on.",
    )
    rate_limit = forms.IntegerField(
        widget=AdminIntegerFieldWidget,
        min_value=1,
        required=False,
        help_text="The most cost of starts in any window of the period.",
    )
    rate_period = PeriodField(required=False, help_text="ISO 8601 such as PT1M, or seconds.")
    throttle_limit = forms.IntegerField(
        widget=AdminIntegerFieldWidget,
        min_value=1,
        required=False,
        help_text="Starts per period, evenly spaced.",
    )
    throttle_period = PeriodField(required=False, help_text="ISO 8601 such as PT1S, or seconds.")

    def clean(self) -> dict[str, Any]:
        """Check that the limits are a policy; each error names its field."""
        cleaned = super().clean() or {}
        for strategy in ("rate", "throttle"):
            limit, period = f"{strategy}_limit", f"{strategy}_period"
            if self.errors.keys() & {limit, period}:
                continue
            if (cleaned.get(limit) is None) != (cleaned.get(period) is None):
                missing = limit if cleaned.get(limit) is None else period
                self.add_error(missing, "Give the limit and its period, or neither.")
        if not self.errors:
            try:
                Policy.parse(limits_of(cleaned))
            except PolicyInvalid as error:
                field = error.field.removeprefix("policy.").replace(".", "_")
                self.add_error(field if field in self.fields else None, _problem(error))
        return cleaned


class KeyForm(LimitsForm, _ModelForm):
    """A key with its own limits; where one is empty there is no limit."""

    class Meta:
        model = RateLimitKey
        fields = ("name", "concurrency", "rate_limit", "rate_period", "throttle_limit", "throttle_period")

    def clean_name(self) -> str:
        """Refuse what is not a key's name, with the remedy."""
        try:
            return key_name(self.cleaned_data["name"])
        except CallInvalid as error:
            raise ValidationError(str(error).removeprefix(f"{error.field}: ")) from error


class OverrideForm(LimitsForm):
    """Limits for a time. What is left empty stays as each key has it; a tick takes a limit off."""

    lift = forms.MultipleChoiceField(
        choices=[(strategy, strategy.capitalize()) for strategy in STRATEGIES],
        widget=forms.CheckboxSelectMultiple,
        required=False,
        label="No limit for",
        help_text="Tick what shall not be limited at all until then.",
    )
    until = forms.SplitDateTimeField(
        widget=AdminSplitDateTime, help_text="When the key's own limits hold again. The time zone is that of this page."
    )

    def clean_until(self) -> datetime:
        """Refuse a time that has passed."""
        until: datetime = self.cleaned_data["until"]
        if until <= timezone.now():
            raise ValidationError(_PAST)
        return until

    def clean(self) -> dict[str, Any]:
        """Check that something is overridden, and nothing both limited and not."""
        cleaned = super().clean()
        lifted = cleaned.get("lift", [])
        given = {strategy for strategy, limit in limits_of(cleaned).items() if limit is not None}
        for strategy in given.intersection(lifted):
            self.add_error("lift", f"{strategy.capitalize()} has a limit above: give one or the other.")
        if not (given or lifted or self.errors):
            self.add_error(None, "Give at least one limit, or tick one that shall not hold.")
        return cleaned

    def override(self) -> dict[str, Any]:
        """Return the strategies that are overridden, as engine.override takes them."""
        limits = limits_of(self.cleaned_data)
        lifted = self.cleaned_data["lift"]
        return {name: limit for name, limit in limits.items() if limit is not None or name in lifted}


def limits_of(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a form as a policy's fields, None for what is not limited."""

    def rate(name: str) -> tuple[int, timedelta] | None:
        limit, period = values.get(f"{name}_limit"), values.get(f"{name}_period")
        return None if limit is None or period is None else (limit, period)

    return {"concurrency": values.get("concurrency"), "rate": rate("rate"), "throttle": rate("throttle")}


def _problem(error: PolicyInvalid) -> str:
    """Return what is wrong without the field, beside which it is shown; an argument's repr is quoted."""
    return str(error).removeprefix(f"{error.field}: ")
