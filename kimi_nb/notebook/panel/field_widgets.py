"""A field of the panel: a control with its label, and below it what is wrong with its value."""

from __future__ import annotations

import functools
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets

from kimi_nb.i18n import translate
from kimi_nb.notebook.panel import panel_style, role_sizes

WRONG = "\N{BALLOT X}"  # before the label of a field that is wrong


class Field:
    """A control and its mistake; ``changed`` gets each value that a person sets.

    ``width`` names a class of the style sheet, "" is one column.
    """

    def __init__(
        self, control: ipywidgets.Widget, changed: Callable[[Any], None], width: str = ""
    ) -> None:
        self.control, self._changed, self._quiet = control, changed, False
        self._label = control.description
        self.mistake = ipywidgets.HTML()
        self.box = ipywidgets.VBox([control, self.mistake])
        self.box.add_class("kimi-field")
        if width:
            self.box.add_class(f"kimi-{width}")
        control.observe(self._observed, "value")
        self.refuse("")

    def _observed(self, change: Any) -> None:
        if not self._quiet:
            self._changed(change["new"])

    def set(self, value: Any, options: Sequence[tuple[str, Any]] | None = None) -> None:
        """Show a value, and of a list its options, as if nobody had touched them."""
        self._quiet = True
        try:
            if options is not None and tuple(self.control.options) != tuple(options):
                self.control.options = options
            self.control.value = value
            if options is not None:  # a list may have no room for it
                self.control.tooltip = self.control.label
        finally:
            self._quiet = False

    def name(self, label: str, hint: str = "") -> None:
        """Change the label, and of a line of text the hint in it."""
        self._label = label
        self.control.description = label
        if hint:
            self.control.placeholder = hint

    def refuse(self, message: str, marked: bool = False) -> None:
        """Show a mistake below the field; "" takes it away. ``marked`` is red without a message."""
        wrong = bool(message) or marked
        self.mistake.value = panel_style.alert(message) + panel_style.validity(wrong)
        self.mistake.layout.display = None if message else "none"
        # A sign beside the colour, and a screen reader reads the label with the field.
        marked_label = f"{WRONG} {self._label}" if wrong and self._label else self._label
        self.control.description = marked_label
        (self.box.add_class if wrong else self.box.remove_class)("kimi-wrong")


def dropdown(label: str, changed: Callable[[Any], None], width: str = "") -> Field:
    """Return a list to choose from; ``width`` is how much it takes of its row.

    "" is half of it, "wide" the whole, "roomy" the whole where the panel is narrow.
    """
    return Field(ipywidgets.Dropdown(description=label), changed, width)


def text(label: str, hint: str, changed: Callable[[Any], None], width: str = "") -> Field:
    """Return a line of text, which counts when Enter or Tab is pressed."""
    line = ipywidgets.Text(description=label, placeholder=hint, continuous_update=False)
    return Field(line, changed, width)


class Role:
    """The sizes of one role in a row; ``changed`` gets the key and the number."""

    def __init__(self, role: str, changed: Callable[[str, int], None]) -> None:
        self._role = role
        self.fields = {
            key: Field(
                ipywidgets.IntText(description=f"{role} {key}", continuous_update=False),
                functools.partial(changed, key),
            )
            for key in role_sizes.KEYS
        }
        self._uses, self._mistake = ipywidgets.HTML(), ipywidgets.HTML()
        self._uses.add_class("kimi-uses")
        fields = [field.box for field in self.fields.values()]
        row = ipywidgets.HBox([*fields, self._uses])
        row.add_class("kimi-role")
        self.box = ipywidgets.VBox([row, self._mistake])
        self.box.add_class("kimi-field")

    def show(self, sizes: Mapping[str, int] | None, uses: str) -> None:
        """Show the sizes of a role, and in words which devices it uses; None hides the row."""
        self.box.layout.display = None if sizes else "none"
        if not sizes:
            return
        for key, field in self.fields.items():
            field.name(translate(f"{self._role} {key}"))
            field.set(sizes[key])
        self._uses.value = html.escape(translate(uses))

    def refuse(self, message: str, keys: Sequence[str] = ()) -> None:
        """Mark some sizes as wrong, with one message below the row."""
        for key, field in self.fields.items():
            field.refuse("", marked=key in keys)
        self._mistake.value = panel_style.alert(message)
        self._mistake.layout.display = None if message else "none"


def part(kind: Any, children: Sequence[ipywidgets.Widget], *names: str) -> ipywidgets.Widget:
    """Return a box with the classes of the style sheet."""
    box = kind(children)
    for name in names:
        box.add_class(name)
    return box
