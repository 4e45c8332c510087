"""Show a panel's state in widgets, and pass clicks on to `state.State` and `work.Work`."""

from __future__ import annotations

import html
from collections.abc import Callable

import ipywidgets

from kimi_nb import show
from kimi_nb.core import known_secrets
from kimi_nb.core.errors import KimiError
from kimi_nb.notebook.panel import choices, work
from kimi_nb.notebook.panel.state import State
from kimi_nb.notebook.pictures import (
    device_memory,
    failure_order,
    flag_changes,
    readiness_times,
    topology_picture,
)
from kimi_nb.show.fixed_width import copyable

_LISTS = {
    "model": "Model",
    "hw": "Hardware",
    "layout": "Layout",
    "variant": "Variant",
    "scenario": "Scenario",
    "engine_version": "Engine",
    "derive": "Derive",
}
_WIDE = "480px"  # of the list that shows a title beside each name
_TEXTS = {
    "site": ("Site", "your site file; empty: the example"),
    "overrides": ("Change", "max-num-seqs=32; decode.dp=16"),
}
_WORK = "Service"  # the tab of the rehearsal or deployment
_TABS = ("Topology", "Findings", "Memory", "Scripts", "Changes", "Parameters", _WORK)


def made(panel: State) -> ipywidgets.Widget:
    """Return the panel as one widget."""
    return Widgets(panel).box


class Widgets:
    """The widgets of one panel, and their handlers."""

    def __init__(self, panel: State) -> None:
        self._panel, self._first = panel, panel.look.plan
        self._quiet = False
        self._old: set[str] = set()  # pages that still show older choices
        self._drawn: object = None
        self._lists = {
            name: ipywidgets.Dropdown(
                description=label,
                layout=ipywidgets.Layout(width=_WIDE if name == "variant" else "236px"),
                style={"description_width": "70px"},
            )
            for name, label in _LISTS.items()
        }
        self._texts = {
            name: ipywidgets.Text(
                description=label,
                placeholder=hint,
                continuous_update=False,
                layout=ipywidgets.Layout(width="356px"),
                style={"description_width": "70px"},
            )
            for name, (label, hint) in _TEXTS.items()
        }
        self._buttons = {
            name: ipywidgets.Button(
                description=name, button_style=style, layout=ipywidgets.Layout(width="100px")
            )
            for name, style in (
                ("Rehearse", "primary"),
                ("Verify", ""),
                ("Stop", ""),
                ("Deploy", "danger"),
            )
        }
        self._confirm = ipywidgets.Text(
            placeholder="the site's name, for Deploy and its Stop",
            layout=ipywidgets.Layout(width="280px"),
        )
        self._bar = ipywidgets.IntProgress(min=0, max=1, layout=ipywidgets.Layout(width="180px"))
        self._said, self._line, self._note = (ipywidgets.HTML() for _ in range(3))
        self._pages = {name: ipywidgets.HTML() for name in _TABS}
        self._nodes = ipywidgets.Tab()
        self._tabs = ipywidgets.Tab(
            [self._nodes if name == "Scripts" else self._pages[name] for name in _TABS],
            titles=_TABS,
        )
        row = {"flex_flow": "row wrap", "align_items": "center"}
        self.box = ipywidgets.VBox(
            [
                ipywidgets.Box(
                    [*self._lists.values(), *self._texts.values()], layout=ipywidgets.Layout(**row)
                ),
                self._note,
                ipywidgets.Box(
                    [*self._buttons.values(), self._confirm, self._bar, self._said],
                    layout=ipywidgets.Layout(**row),
                ),
                self._line,
                self._tabs,
            ]
        )
        self.box.add_class("kimi-panel")
        for name, widget in {**self._lists, **self._texts}.items():
            widget.observe(lambda change, name=name: self._chosen(name, change["new"]), "value")
        for name, press in (
            ("Rehearse", self._rehearse),
            ("Verify", self._verify),
            ("Stop", self._stop),
            ("Deploy", self._deploy),
        ):
            self._buttons[name].on_click(lambda _, press=press: self._press(press))
        self._tabs.observe(lambda _: self._show_tab(), "selected_index")
        self._tabs.selected_index = 0
        panel.work.changed = self._show_work
        self._show_look()
        self._show_work()

    # Choosing -------------------------------------------------------------------------

    def _chosen(self, name: str, value: str | None) -> None:
        if self._quiet:
            return
        try:
            self._panel.choose(**{name: value or ""})
        except KimiError as error:
            self._note.value = _alert(str(error))
            return
        self._show_look()

    def _show_look(self) -> None:
        """Update everything that depends on the choices."""
        panel, titles = self._panel, choices.titles(self._panel.choices)
        self._quiet = True
        try:
            for name, values in choices.allowed(panel.choices).items():
                self._lists[name].options = [
                    (
                        f"{value}: {titles[value]}"
                        if name == "variant" and value
                        else value or "default",
                        value,
                    )
                    for value in values
                ]
                self._lists[name].value = getattr(panel.choices, name) or values[0]
                self._lists[name].disabled = len(values) < 2
            for name, text in self._texts.items():
                text.value = getattr(panel.choices, name)
        finally:
            self._quiet = False
        found = panel.look.findings
        wrong = [str(one.message) for one in found.errors] if found is not None else []
        # Beside the choices and not in a tab alone: whoever looks at the topology sees them too.
        self._note.value = (
            f"<i>{html.escape('; '.join(panel.notes))}</i>" if panel.notes else ""
        ) + (_alert("\n".join(f"error: {one}" for one in wrong)) if wrong else "")
        self._old = set(_TABS) - {_WORK}
        self._show_tab()
        self._show_work()

    def _show_tab(self) -> None:
        """Redraw the selected page if it shows older choices."""
        name = _TABS[self._tabs.selected_index or 0]
        if name in self._old:
            self._old.discard(name)
            self._draw(name, self._panel.look)

    def _draw(self, name: str, look: choices.Look) -> None:
        page = self._pages[name]
        if name == "Parameters":
            layout = look.choices.layout
            page.value = (
                f"What the cells below do, the parameters cell decides. Put these lines "
                f"there, in notebook <code>{choices.notebook(layout)}</code>, "
                f'or in one for every layout with <code>layout: str = "{html.escape(layout)}"</code>'
                f", and run it again:"
                f"{copyable(look.choices.lines())}"
            )
        elif name == "Scripts":
            parts = look.parts
            self._nodes.children = [ipywidgets.HTML(copyable(text)) for text in parts.values()]
            self._nodes.titles = tuple(parts)
            self._nodes.selected_index = 0 if parts else None
        elif look.plan is None or look.findings is None:
            page.value = _alert(look.error)
        elif name == "Topology":
            page.value = topology_picture.picture(look.plan)._repr_html_()
        elif name == "Findings":
            page.value = _rows(look.findings._repr_html_())
        elif name == "Memory":
            page.value = device_memory.picture(look.findings.memory)._repr_html_()
        else:
            page.value = flag_changes.picture(self._first or look.plan, look.plan)._repr_html_()

    # Working --------------------------------------------------------------------------

    def _press(self, press: Callable[[], None]) -> None:
        """Call a button's handler, and show an error in the tab of the service."""
        try:
            press()
        except KimiError as error:
            self._pages[_WORK].value = _alert(str(error))
            self._tabs.selected_index = _TABS.index(_WORK)

    def _rehearse(self) -> None:
        if self._panel.look.plan is not None and not self._panel.work.busy:
            self._panel.work.rehearse(self._panel.look.plan)
            self._show_work()

    def _deploy(self) -> None:
        if self._panel.look.plan is not None and not self._panel.work.busy:
            self._panel.work.deploy(self._panel.look.plan, self._named())
            self._show_work()

    def _stop(self) -> None:
        self._panel.work.stop(self._named())

    def _named(self) -> str:
        """Return the site's name as typed, and clear the field: each use needs it anew."""
        name, self._confirm.value = self._confirm.value.strip(), ""
        return name

    def _verify(self) -> None:
        self._pages[_WORK].value = _rows(self._panel.work.verify()._repr_html_())
        self._tabs.selected_index = _TABS.index(_WORK)

    def _show_work(self) -> None:
        """Update the buttons, the bar and the line; the thread of the work calls this as well."""
        doing, look = self._panel.work, self._panel.look
        seen, found = doing.progress, doing.result
        self._buttons["Rehearse"].disabled = doing.busy or look.plan is None
        self._buttons["Deploy"].disabled = (
            doing.busy or look.findings is None or bool(look.findings.errors)
        )
        self._buttons["Stop"].disabled = not doing.stoppable
        self._buttons["Verify"].disabled = doing.state != work.UP
        if found is not None:
            self._bar.max, self._bar.value = found.engines, found.ready
        elif seen is not None:
            self._bar.max, self._bar.value = seen.engines, seen.ready
        else:
            self._bar.max, self._bar.value = 1, 0
        self._bar.bar_style = {work.UP: "success", work.FAILED: "danger"}.get(doing.state, "info")
        self._said.value = f"&nbsp;{_escaped(doing.said)}"
        line = seen.line if seen is not None and doing.state == work.STARTING else ""
        self._line.value = (
            f"<code style='font-size:11px'>{_escaped(line, 160)}</code>" if line else ""
        )
        if found is not None and found is not self._drawn and doing.plan is not None:
            self._drawn = found
            mark = "" if found.mark == "measured" else found.mark
            pictures = [readiness_times.picture(doing.plan, found.times, mark=mark)]
            if found.events:
                pictures.insert(0, failure_order.picture(doing.plan, found.events, mark=mark))
            for picture in pictures:
                picture.save(found.folder)
            self._pages[_WORK].value = _rows(found._repr_html_()) + "".join(
                picture._repr_html_() for picture in pictures
            )


def _rows(text: str) -> str:
    """Return a table with the line height of a page; that of widgets is as tall as a button."""
    return f"<div style='line-height:1.45'>{text}</div>"


def _escaped(text: str, most: int | None = None) -> str:
    """Return at most so many characters of what an engine or a node said, as HTML."""
    return html.escape(show.visible(known_secrets.text(text), lines=False)[:most])


def _alert(text: str) -> str:
    return (
        f"<div role='alert' style='white-space:pre-wrap;border-left:4px solid #d55e00;"
        f"padding-left:8px'>{html.escape(known_secrets.text(text))}</div>"
    )
