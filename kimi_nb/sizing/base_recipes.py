"""The recipes that a search starts from: one for each layout, as deployments with their shapes.

>>> found, refused = of("k2.5", "a3")
>>> [one.layout for one in found], [reason.partition(":")[0] for reason in refused]
(['single', 'pd'], ['layout dp'])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from kimi_nb import catalog
from kimi_nb.check import judge
from kimi_nb.check.rules import capacity
from kimi_nb.core.errors import NoFigureError, NoRecipeError, ParameterError, choice
from kimi_nb.params import fields, schema
from kimi_nb.plan import build, memory
from kimi_nb.plan.roles import Request
from kimi_nb.plan.spec import Plan
from kimi_nb.sizing import roofline


@dataclass(frozen=True)
class Part:
    """One role of a recipe, as it is documented.

    Attributes:
        flags: The flags of its engines by dotted name.
        drafts: Tokens that its draft proposes, 0 without one; ``method`` is that of the draft.
    """

    role: str
    groups: int
    nodes: int
    shape: memory.Shape
    flags: Mapping[str, object]
    drafts: int
    method: str
    draft_parameters: int


@dataclass(frozen=True)
class Base:
    """A recipe to start from: its plan, and its roles by name; ``model`` and ``chip`` as given."""

    model: str
    chip: str
    layout: str
    derive: bool
    plan: Plan
    request: Request
    parts: Mapping[str, Part]

    @property
    def hardware(self) -> schema.Hardware:
        """The hardware that it is for."""
        return self.request.hardware

    @property
    def arch(self) -> Mapping[str, int]:
        """The sizes of the model."""
        return self.request.model.architecture

    @property
    def precision(self) -> str:
        """The number format of the weights."""
        return self.request.weights.precision

    @property
    def engine(self) -> catalog.Engine:
        """The version of the engine."""
        return self.request.engine

    @property
    def connector(self) -> str:
        """The connector of the cache; "" where none travels."""
        for part in self.parts.values():
            return str(part.flags.get("kv-transfer-config.kv_connector", ""))
        return ""


def of(
    model: str, hardware: str, *, derive: bool = False, layout: str = ""
) -> tuple[list[Base], Counter[str]]:
    """Return a base for each layout (or the one named), and why there is none for the others.

    Raises:
        ParameterError: If there is no such layout.
        NoFigureError: If the work of the model cannot be computed.
    """
    if layout and layout not in fields.LAYOUTS:
        raise ParameterError(choice("layout", layout, fields.LAYOUTS))
    found: list[Base] = []
    refused: Counter[str] = Counter()
    for one in fields.LAYOUTS:
        if layout in ("", one):
            try:
                found.append(_base(model, hardware, one, derive))
            except NoRecipeError as error:
                refused[f"layout {one}: {_why(error)}"] += 1
    for base in found:
        why = roofline.named(base.precision, base.arch)
        if why:
            raise NoFigureError(
                f"No time can be estimated for {base.request.model.name} on {hardware}: {why}. "
                "Choose another --hw or --model."
            )
    return found, refused


def _why(error: NoRecipeError) -> str:
    """Return the last sentence of a refusal: what --derive would make, or why it cannot."""
    return str(error).strip().splitlines()[-1].rstrip(".")


def _base(model: str, hardware: str, layout: str, derive: bool) -> Base:
    asked = build.request(model, hardware, layout, derive=derive)
    made = build.from_request(asked)
    deployment = judge.of_plan(made)
    parts = {}
    for role, values in made.flags.items():
        server = next(one for one, _ in deployment.profiles() if one.role == role)
        shape = capacity.served_shape_of(deployment, server)
        if shape is None:
            raise NoRecipeError(f"the sizes of {role} are not known")
        mine = [engine for engine in made.engines if engine.role == role]
        groups = {engine.group for engine in mine}
        nodes = {engine.node for engine in mine if engine.group == mine[0].group}
        flags = {name: value.value for name, value in values.items()}
        parts[role] = Part(
            role,
            len(groups),
            len(nodes),
            shape,
            flags,
            server.draft,
            str(flags.get("speculative-config.method", "")),
            capacity.draft_parameters(deployment, server),
        )
    return Base(model, hardware, layout, asked.recipe.derivation is not None, made, asked, parts)
