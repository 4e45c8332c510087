"""Show a panel's state in widgets, and pass clicks on to `state.State` and `work.Work`."""

from __future__ import annotations

import functools
import html
import threading
from collections.abc import Callable, Mapping, Sequence

import ipywidgets

from kimi_nb.core.errors import KimiError
from kimi_nb.i18n import current, translate, use
from kimi_nb.notebook.panel import choice_labels, field_widgets, pages, panel_style, role_sizes
from kimi_nb.notebook.panel.field_widgets import Role
from kimi_nb.notebook.panel.mistakes import Mistake
from kimi_nb.notebook.panel.size_tab import SizeTab
from kimi_nb.notebook.panel.state import State
from kimi_nb.params import fields

# Those with long values have more of a row.
_WIDTHS = {"model": "roomy", "hw": "roomy", "variant": "wide"}
_BUTTONS = {
    "Rehearse": "Run the scripts on this machine, with stand-ins for the engines",
    "Verify": "Run the checks of notebook 06 on what is up",
    "Stop": "Stop what runs; a deployment wants the name of its site",
    "Deploy": "Run the scripts on the site, whose name stands beside this button",
}


def made(panel: State) -> ipywidgets.Widget:
    """Return the panel as one widget."""
    return Widgets(panel).box


class Widgets:
    """The widgets of one panel, and their handlers."""

    def __init__(self, panel: State) -> None:
        self._panel, self._first = panel, panel.look.plan
        self._old: set[str] = set()  # pages that still show older choices
        self._told: list[str] = []  # mistakes that belong to no field above the tabs
        self._drawn: object = None
        self._alone = threading.RLock()  # the thread of the work draws as well
        self._lists = {
            name: field_widgets.dropdown(label, self._chooser(name), _WIDTHS.get(name, ""))
            for name, label in choice_labels.LISTS.items()
        }
        self._texts = {
            name: field_widgets.text(label, hint, self._chooser(name), _WIDTHS.get(name, ""))
            for name, (label, hint) in choice_labels.TEXTS.items()
        }
        self._roles = {
            role: Role(role, functools.partial(self._size, role)) for role in fields.ROLES
        }
        self._buttons = {name: ipywidgets.Button() for name in _BUTTONS}
        self._buttons["Rehearse"].button_style = "primary"
        self._confirm = field_widgets.text("", "", lambda _: None)
        self._language = ipywidgets.ToggleButtons(
            options=[("EN", "en"), ("中文", "zh")],
            value=current(),
            tooltips=["English", "简体中文"],
        )
        self._language.observe(lambda change: self._speak(change["new"]), "value")
        self._head, self._note, self._status = (ipywidgets.HTML() for _ in range(3))
        self._pages = {name: ipywidgets.HTML() for name in pages.TABS}
        self._service = {name: ipywidgets.HTML() for name in ("progress", "checks", "result")}
        self._nodes = ipywidgets.Tab()
        self.sizes = SizeTab(panel, self._alone, self._show_sizes, self._show_look)
        bodies = self._pages | {
            "Scripts": self._nodes,
            pages.SIZE: self.sizes.box,
            pages.SERVICE: ipywidgets.VBox([*self._service.values()]),
        }
        self._tabs = ipywidgets.Tab([*bodies.values()], titles=pages.TABS)
        self._tabs.selected_index = 0
        self.box = self._arranged()
        for name, press in (
            ("Rehearse", self._rehearse),
            ("Verify", self._verify),
            ("Stop", self._stop),
            ("Deploy", self._deploy),
        ):
            self._buttons[name].on_click(lambda _, press=press: self._press(press))
        self._tabs.observe(lambda _: self._show_tab(), "selected_index")
        panel.work.changed = self._show_work
        self._name()
        self._show_look()

    @property
    def fields(self) -> Mapping[str, ipywidgets.Widget]:
        """The control of each choice; to set its ``value`` is what a person does."""
        return {name: field.control for name, field in {**self._lists, **self._texts}.items()}

    def open(self, tab: str) -> None:
        """Open a tab of `pages.TABS`."""
        self._tabs.selected_index = pages.TABS.index(tab)

    def _arranged(self) -> ipywidgets.Widget:
        """Return everything in its place: head, choices, sizes, actions, tabs."""
        shown = {**self._lists, **self._texts}
        rehearse, verify, stop, deploy = self._buttons.values()
        confirmed = field_widgets.part(ipywidgets.HBox, [self._confirm.box, deploy], "kimi-deploy")
        rows = [
            field_widgets.part(
                ipywidgets.VBox,
                [
                    field_widgets.part(ipywidgets.Box, [self._head, self._language], "kimi-title"),
                    self._note,
                ],
                *("kimi-part", "kimi-head"),
            ),
            field_widgets.part(
                ipywidgets.Box, [one.box for one in shown.values()], "kimi-part", "kimi-grid"
            ),
            field_widgets.part(
                ipywidgets.VBox,
                [role.box for role in self._roles.values()],
                "kimi-part",
                "kimi-sizes",
            ),
            field_widgets.part(
                ipywidgets.VBox,
                [
                    field_widgets.part(
                        ipywidgets.Box, [rehearse, verify, stop, confirmed], "kimi-actions"
                    ),
                    self._status,
                ],
                "kimi-part",
            ),
            self._tabs,
        ]
        self._status.add_class("kimi-status")
        return field_widgets.part(
            ipywidgets.VBox, [ipywidgets.HTML(panel_style.sheet()), *rows], "kimi-panel"
        )

    # Language --------------------------------------------------------------------------

    def _speak(self, language: str) -> None:
        """Set the language of this session, and draw all of the panel in it."""
        use(language)
        with self._alone:
            self._name()
            self._drawn = None
            self._show_look()

    def _name(self) -> None:
        """Name fields and buttons in the current language."""
        for name, label in choice_labels.LISTS.items():
            self._lists[name].name(translate(label))
        for name, (label, hint) in choice_labels.TEXTS.items():
            self._texts[name].name(translate(label), translate(hint))
        for name, why in _BUTTONS.items():
            self._buttons[name].description = translate(name)
            self._buttons[name].tooltip = translate(why)
        self.sizes.name()
        self._confirm.control.placeholder = translate("name of the site, to confirm")
        self._confirm.control.tooltip = translate(
            "Name of the site, which confirms Deploy and its Stop"
        )

    # Choosing -------------------------------------------------------------------------

    def _chooser(self, name: str) -> Callable[[str | None], None]:
        return lambda value: self._choose(name, **{name: value or ""})

    def _size(self, role: str, key: str, value: int) -> None:
        pairs = role_sizes.overridden(self._panel.choices, role, key, value)
        self._choose(f"{role}.{key}", overrides=pairs)

    def _choose(self, name: str, **change: str) -> None:
        """Make a choice; one that there is not is refused by the field that has it."""
        with self._alone:
            try:
                self._panel.choose(**change)
            except KimiError as error:
                self._refuse([Mistake(name, str(error), (name,))])
                return
            self._show_look()

    def _show_look(self) -> None:
        """Update everything that depends on the choices."""
        panel, given = self._panel, self._panel.choices
        for name, labels in choice_labels.labels(given).items():
            options = tuple((translate(label), value) for label, value in labels)
            shown = choice_labels.shown(getattr(given, name), options)
            self._lists[name].set(shown, options)
            self._lists[name].control.disabled = len(options) < 2
        for name, field in self._texts.items():
            field.set(getattr(given, name))
        sizes = role_sizes.sizes(given)
        for role, row in self._roles.items():
            row.show(sizes.get(role), role_sizes.uses(panel.look.plan, role))
        self._head.value = pages.head(panel.look, panel.mistakes)
        self._refuse(panel.mistakes)
        self._old = {*pages.TABS} - {pages.SERVICE, pages.SIZE}
        self.sizes.show()
        self._show_tab()
        self._show_work()

    def _refuse(self, wrong: Sequence[Mistake]) -> None:
        """Show each mistake by its field, and above the choices what belongs to none of them."""
        told = {mistake.field: mistake.message for mistake in reversed(wrong)}
        taking_part = {name for mistake in wrong for name in mistake.fields}
        shown = {**self._lists, **self._texts}
        for name, field in shown.items():
            field.refuse(told.pop(name, ""))
        for role, row in self._roles.items():
            said = [told.pop(f"{role}.{key}", "") for key in role_sizes.KEYS]
            row.refuse(
                "\n".join(filter(None, said)),
                [key for key in role_sizes.KEYS if f"{role}.{key}" in taking_part],
            )
        self._told = [*told.values()]
        self._show_note()

    def _show_note(self) -> None:
        """Show what followed from the last choice, and what is wrong in no field that is seen."""
        found = self._panel.look.findings
        elsewhere = pages.TABS[self._tabs.selected_index or 0] != pages.SIZE
        sizes = [
            f"{translate(pages.SIZE)}: {translate(said)}"
            for said in self.sizes.mistakes.values()
            if elsewhere
        ]
        # Beside the choices and not in a tab alone: whoever looks at the topology sees them too.
        errors = [f"error: {one.message}" for one in found.errors] if found is not None else []
        notes = "<br>".join(html.escape(translate(note)) for note in self._panel.notes)
        self._note.value = (f"<i>{notes}</i>" if notes else "") + panel_style.alert(
            "\n".join([*self._told, *errors, *sizes])
        )

    def _show_sizes(self) -> None:
        """Show what the tab of the sizes says outside of itself."""
        self._show_note()
        self._tabs.titles = pages.titles(
            self._panel.look, self._first, self._panel.work, self.sizes.count
        )

    def _show_tab(self) -> None:
        """Redraw the selected page if it shows older choices."""
        self._show_note()
        name = pages.TABS[self._tabs.selected_index or 0]
        if name not in self._old:
            return
        self._old.discard(name)
        look = self._panel.look
        if name != "Scripts":
            self._pages[name].value = pages.page(name, look, self._first, self._panel.mistakes)
            return
        parts = pages.scripts(look)
        self._nodes.children = [ipywidgets.HTML(text) for text in parts.values()]
        self._nodes.titles = tuple(parts)
        self._nodes.selected_index = 0 if parts else None

    # Working --------------------------------------------------------------------------

    def _press(self, press: Callable[[], None]) -> None:
        """Call a button's handler; what it refuses is told below the field of the site's name."""
        self._confirm.refuse("")
        try:
            press()
        except KimiError as error:
            self._confirm.refuse(str(error))

    def _rehearse(self) -> None:
        if self._panel.look.plan is not None and not self._panel.work.busy:
            self.open(pages.SERVICE)
            self._panel.work.rehearse(self._panel.look.plan)

    def _deploy(self) -> None:
        if self._panel.look.plan is not None and not self._panel.work.busy:
            self._panel.work.deploy(self._panel.look.plan, self._named())
            self.open(pages.SERVICE)

    def _stop(self) -> None:
        self._panel.work.stop(self._named(), wait=False)

    def _verify(self) -> None:
        self._panel.work.verify()
        self.open(pages.SERVICE)

    def _named(self) -> str:
        """Return the site's name as typed, and clear the field: each use needs it anew."""
        name = str(self._confirm.control.value).strip()
        self._confirm.set("")
        return name

    def _show_work(self) -> None:
        """Update buttons, status and service; the threads of the work call this as well."""
        with self._alone:
            doing, look = self._panel.work, self._panel.look
            self._buttons["Rehearse"].disabled = doing.busy or look.plan is None
            self._buttons["Deploy"].disabled = (
                doing.busy or look.findings is None or bool(look.findings.errors)
            )
            self._buttons["Stop"].disabled = not doing.stoppable
            self._buttons["Verify"].disabled = not doing.verifiable
            self._status.value = pages.status(doing, look.plan)
            self._show_sizes()
            self._service["progress"].value = pages.progress(doing, look.plan)
            self._service["checks"].value = pages.checking(doing)
            if doing.result is not self._drawn:
                self._drawn = doing.result
                self._service["result"].value = pages.result(doing)
