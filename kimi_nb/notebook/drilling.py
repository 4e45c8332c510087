"""Make a drill in a notebook, take the answer from a parameter or a form, and show the verdict.

The form is one of ipywidgets, where a person can use it; else a text that names the parameter. What
was made to go wrong is shown only to who has answered, or asks for it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kimi_nb import show
from kimi_nb.core.errors import KimiError, ParameterError
from kimi_nb.drill import answer, exercise
from kimi_nb.drill.record import VERDICT, Drill
from kimi_nb.drill.verdict import Verdict, judge
from kimi_nb.i18n import translate
from kimi_nb.plan.spec import Plan
from kimi_nb.service.session import Session

_NOT_SURE = "not sure"


def make(session: Session, plan: Plan, fault: str, seed: int) -> Drill:
    """Rehearse a plan with a fault, and keep its logs; ``seed`` 0 is another one each time.

    Raises ParameterError where the action is not to rehearse, and what `exercise.start` raises.
    """
    if session.action != "rehearse":
        raise ParameterError(
            f"action {session.action}: a drill is a rehearsal; choose action rehearse."
        )
    folder = session.folder / plan.name
    drill = exercise.start(plan, folder, fault=fault, seed=seed or None, say=show.say)
    session.record("drill", logs=drill.folder, asked=fault or "surprise", seed=drill.seed)
    return drill


def verdict(session: Session, drill: Drill, said: str, reveal: bool) -> Verdict | show.Text:
    """Return the verdict on an answer: ``said``, or else that of the form.

    Without any it is a text that tells nothing, unless ``reveal`` asks for the doctor all the same.
    """
    said = said.strip() or _of_form(drill)
    if not said and not reveal:
        return show.Text(
            "Not answered yet", "Answer in the form above, or set answer; reveal shows it at once."
        )
    found = judge(drill, said)
    session.record("answer", logs=drill.folder, said=said, right=found.ok, fault=found.fault)
    return found


def _of_form(drill: Drill) -> str:
    """Return the last answer that was judged of a drill, "" for none."""
    path = drill.folder / VERDICT
    return str(json.loads(path.read_text(encoding="utf-8"))["said"]) if path.exists() else ""


@dataclass(frozen=True)
class Form:
    """The questions of a drill: widgets in an interactive session, a text elsewhere."""

    drill: Drill

    def __str__(self) -> str:
        return (
            "Which node, which rank, and what was it? Set the parameter answer, such as "
            f"'{self.drill.nodes[-1]} rank 1 out of memory'."
        )

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        plain = {"text/plain": translate(str(self))}
        if not show.interactive():
            return plain
        return plain | widgets(self.drill)._repr_mimebundle_() | plain


def widgets(drill: Drill) -> Any:
    """Return the form as one widget, which shows the verdict below it once it is answered."""
    import ipywidgets  # start-up: only where a person answers

    wide = ipywidgets.Layout(width="420px")
    node = ipywidgets.Dropdown(description="Node", options=[_NOT_SURE, *drill.nodes], layout=wide)
    rank = ipywidgets.Text(
        description="Rank", placeholder="a number; none: the node as a whole", layout=wide
    )
    known = [(f"{name}: {says}", name) for _, name, says in answer.causes().rows]
    cause = ipywidgets.Dropdown(
        description="Cause",
        options=[(_NOT_SURE, ""), *known],
        layout=ipywidgets.Layout(width="640px"),
    )
    words = ipywidgets.Text(description="or in words", placeholder="your own words", layout=wide)
    button = ipywidgets.Button(description="Answer", button_style="primary")
    told = ipywidgets.HTML()

    def press(_: Any) -> None:
        said = {
            "node": "" if node.value == _NOT_SURE else node.value,
            "rank": rank.value.strip(),
            "cause": words.value.strip() or cause.value,
        }
        text = " ".join(f"{key}={value}" for key, value in said.items() if value)
        try:
            told.value = (
                judge(drill, text)._repr_html_() if text else "Say one of the three at least."
            )
        except KimiError as error:
            told.value = show.Text("", str(error))._repr_html_()

    button.on_click(press)
    return ipywidgets.VBox([node, rank, cause, words, button, told])
