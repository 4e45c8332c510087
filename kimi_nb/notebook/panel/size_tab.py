"""The tab of the panel that searches sizes, and loads one that was found into its choices."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import ipywidgets

from kimi_nb.i18n import translate
from kimi_nb.notebook.panel import field_widgets, size_pages, size_request
from kimi_nb.notebook.panel.size_request import SizeRequest
from kimi_nb.notebook.panel.state import State

FIELDS = {
    "input": ("Input tokens", "tokens of a prompt, such as 16000", "4000"),
    "output": ("Output tokens", "tokens of an answer, such as 1000", "1000"),
    "lengths": ("Lengths", "in place of both: 1000:200:9,60000:800:1", ""),
    "ttft": ("Mean TTFT", "such as 2s; empty: no bound", "2s"),
    "tpot": ("Mean TPOT", "such as 50ms; empty: no bound", "50ms"),
    "nodes": ("Nodes", "such as 4; empty: those of the plan", ""),
}
_WIDTHS = {"lengths": "wide"}
_BUTTONS = {
    "Search": "Search the layouts, sizes and limits that keep these latencies",
    "Apply": "Put the settings of this candidate into the choices above",
}


class SizeTab:
    """The widgets of the tab.

    ``told`` is called when what it says has changed, ``loaded`` after a candidate was loaded;
    ``alone`` is the lock of whoever draws.
    """

    def __init__(
        self,
        panel: State,
        alone: contextlib.AbstractContextManager[object],
        told: Callable[[], None],
        loaded: Callable[[], None],
    ) -> None:
        self._panel, self._alone, self._told, self._loaded = panel, alone, told, loaded
        self.fields = {
            name: field_widgets.text(label, hint, lambda _: self._asked(), _WIDTHS.get(name, ""))
            for name, (label, hint, _) in FIELDS.items()
        }
        for name, (_, _, value) in FIELDS.items():
            self.fields[name].set(value)
        self.candidate = field_widgets.dropdown("Candidate", lambda _: None, "wide")
        self.buttons = {name: ipywidgets.Button() for name in _BUTTONS}
        self.buttons["Search"].on_click(lambda _: self._search())
        self.buttons["Apply"].on_click(lambda _: self._load())
        self._status, self._result = ipywidgets.HTML(), ipywidgets.HTML()
        self._drawn: object = None
        self.asked = self._read()
        self.box = self._arranged()
        panel.sizes.changed = self._show_found

    def _arranged(self) -> ipywidgets.Widget:
        search, load = self.buttons.values()
        part, box = field_widgets.part, ipywidgets.Box
        self._loads = part(box, [self.candidate.box, load], "kimi-actions", "kimi-loads")
        return ipywidgets.VBox(
            [
                part(box, [one.box for one in self.fields.values()], "kimi-grid", "kimi-asked"),
                part(box, [search, self._status], "kimi-actions"),
                self._loads,
                part(ipywidgets.VBox, [self._result], "kimi-found"),
            ]
        )

    @property
    def mistakes(self) -> Mapping[str, str]:
        """The mistakes by the names of their fields."""
        return self.asked.mistakes

    @property
    def count(self) -> str:
        """What the title of the tab says: mistakes, that it searches, or how many were found."""
        if self.asked.mistakes:
            return field_widgets.WRONG
        sizes = self._panel.sizes
        if sizes.running:
            return "…"
        answer = sizes.found.answer if sizes.found is not None else None
        return str(len(answer.candidates)) if answer is not None else ""

    def name(self) -> None:
        """Name fields and buttons in the current language."""
        for name, (label, hint, _) in FIELDS.items():
            self.fields[name].name(translate(label), translate(hint))
        self.candidate.name(translate("Candidate"))
        for name, why in _BUTTONS.items():
            self.buttons[name].description = translate(name)
            self.buttons[name].tooltip = translate(why)
        self._drawn = None

    def show(self) -> None:
        """Judge the fields anew, which depend on the choices, and draw."""
        self.asked = self._read()
        for name, field in self.fields.items():
            field.refuse(self.asked.mistakes.get(name, ""))
        for name in ("input", "output"):
            self.fields[name].control.disabled = bool(self.asked.lengths)
        self._draw()

    def _read(self) -> SizeRequest:
        texts = {name: str(field.control.value) for name, field in self.fields.items()}
        plan = self._panel.look.plan
        nodes = len(plan.nodes) if plan is not None else 0
        return size_request.read(texts, self._panel.choices, nodes)

    def _asked(self) -> None:
        with self._alone:
            self.show()
            self._told()

    def _search(self) -> None:
        with self._alone:
            self.show()
            if self.asked.ready and not self._panel.sizes.running:
                self._panel.sizes.start(self._panel.choices, self.asked)
                self._draw()
                self._told()

    def _load(self) -> None:
        with self._alone:
            found, at = self._panel.sizes.found, self.candidate.control.value
            if found is not None and found.answer is not None and at is not None:
                self._panel.adopt(found, found.answer.candidates[at])
                self._loaded()

    def _show_found(self) -> None:
        """Draw the search; its threads call this."""
        with self._alone:
            self._draw()
            self._told()

    def _draw(self) -> None:
        sizes = self._panel.sizes
        self.buttons["Search"].disabled = sizes.running or not self.asked.ready
        self._status.value = size_pages.status(sizes, self.asked)
        if sizes.found is self._drawn and self._drawn is not None:
            return
        self._drawn = sizes.found
        options = size_pages.options(sizes.found)
        self._loads.layout.display = None if options else "none"
        if options:
            self.candidate.set(options[0][1], options)
        self._result.value = size_pages.result(sizes)
