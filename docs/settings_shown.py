"""Defaults of settings as a reader of the API pages means them: ``setting(1, at_least=1)`` is 1.

A field of a settings class is made by a call that also holds its limits. mkdocstrings reads the
source, so without this a page would show the call, and a required setting would look optional.
"""

from __future__ import annotations

from typing import Any

from griffe import Attribute, ExprCall, Extension

MAKERS = {
    "setting": None,
    "size": None,
    "duration": "0.0",
    "rate": "None",
    "ratio": "1.0",
    "_interval": "None",
}
"""What makes a field with limits, and its default without a first argument; None: required."""


class SettingsShown(Extension):
    """Runs before the signatures of dataclasses are derived from their fields."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Put the default in the place of the call; nothing where the setting is required."""
        call = attr.value
        if not (isinstance(call, ExprCall) and str(call.function) in MAKERS):
            return
        given = [each for each in call.arguments if type(each).__name__ != "ExprKeyword"]
        attr.value = given[0] if given else MAKERS[str(call.function)]
