"""Read every deployment of a checkout of vllm-project/recipes.

For example::

    for deployment in vllm_recipes.read(checkout, "kimi-k2.6"):
        deployment.id  # recipes:Kimi-K2.6:h200:single_node_tp, ...

Each page (``models/<organisation>/<name>.yaml``) is rendered as the project's own generator does,
for each form of its weights that has a checkpoint of its own, each hardware and each strategy. The
commands in its guide follow as ``recipes-guide:...``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from kimi_nb.core import shapes
from kimi_nb.core.errors import ParameterError
from kimi_nb.upstream import guides, recipe_choices, recipe_images, recipe_words
from kimi_nb.upstream.checkout import Checkout
from kimi_nb.upstream.published import Deployment, Role, Source, text
from kimi_nb.upstream.recipe_choices import ROLES, STORE, Rendering
from kimi_nb.upstream.recipe_pages import Page, Profile, Strategy, Taxonomy, Variant
from kimi_nb.upstream.recipe_shape import Shape

_MODELS = "models"

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class _Shared:
    """What all pages have in common; ``repos`` are the checkpoints with a page of their own."""

    checkout: Checkout
    profiles: Mapping[str, Profile]
    strategies: Mapping[str, Strategy]
    repos: frozenset[str]


def read(checkout: Checkout, model: str = "") -> Iterator[Deployment]:
    """Yield the deployments whose checkpoint or page has ``model`` in its name, in any case.

    What cannot be read is left out and told in ``checkout.unread``. Raises ParameterError if the
    taxonomy cannot be read: nothing can be rendered then.
    """
    taxonomy = _valid(checkout, "taxonomy.yaml", Taxonomy)
    if taxonomy is None:
        raise ParameterError(
            f"{checkout.root}: {checkout.unread[-1]} Nothing is rendered without it."
        )
    paths = checkout.files(_MODELS, ".yaml")
    shared = _Shared(
        checkout,
        taxonomy.hardware_profiles,
        _strategies(checkout),
        frozenset(map(_repo, paths)),
    )
    for path in paths:
        yield from _page(shared, path, model.lower())


def _repo(path: str) -> str:
    """Return the checkpoint that a page is about, by its path: organisation/name."""
    parts = path.removesuffix(".yaml").split("/")
    return f"{parts[1]}/{parts[-1]}"


def _valid(checkout: Checkout, path: str, shape: type[M]) -> M | None:
    """Return the contents of a file in its shape, None if it cannot be read or has another."""
    data = checkout.yaml(path)
    if data is None:
        return None
    try:
        return shape.model_validate(data)
    except ValidationError as error:
        checkout.leave_out(path, f"{shapes.fault(error)}.")
        return None


def _strategies(checkout: Checkout) -> dict[str, Strategy]:
    found = {}
    for folder in ("strategies", "kv_store"):
        for path in checkout.files(folder, ".yaml"):
            if one := _valid(checkout, path, Strategy):
                found[one.name] = one
    return found


def _page(shared: _Shared, path: str, model: str) -> Iterator[Deployment]:
    checkout, repo = shared.checkout, _repo(path)
    data = checkout.text(path) if path.count("/") else None
    if data is None or model not in f"{repo} {data}".lower():
        return
    page = _valid(checkout, path, Page)
    if page is None:
        return
    lines = data.splitlines()
    for shown, name in _shown(page, repo, shared.repos).items():
        served = page.variants[name].model_id or page.model.model_id
        if model not in f"{shown} {served}".lower():
            continue
        for one in recipe_choices.renderings(page, name, shared.profiles, shared.strategies):
            source = Source(checkout.repo, checkout.commit, path, _line(lines, one.serving))
            yield _rendered(shared, page, one, shown, source)
    for found in _guide(shared, page, path, lines):
        if model in f"{repo} {found.model}".lower():
            yield found


def _shown(page: Page, repo: str, repos: frozenset[str]) -> dict[str, str]:
    """Return the form of the weights that is rendered under each name.

    Weights with a checkpoint of their own are shown by its name, unless it has a page.
    """
    out = {repo: "default"} if "default" in page.variants else {}
    for name, variant in page.variants.items():
        if "/" in variant.model_id and variant.model_id not in repos:
            out[variant.model_id] = name
    return out


def _guide(shared: _Shared, page: Page, path: str, lines: list[str]) -> Iterator[Deployment]:
    """Yield the deployments of a page's guide."""
    if len(page.guide) > guides.LARGEST:
        shared.checkout.leave_out(path, f"its guide is larger than {guides.LARGEST >> 10} KB.")
        return
    repo, variant = _repo(path), page.variants.get("default", Variant())
    first = next((at for at, line in enumerate(lines, 2) if line.startswith("guide:")), 1)
    usual = Deployment(
        id=f"recipes-guide:{repo.partition('/')[2]}",
        source=Source(shared.checkout.repo, shared.checkout.commit, path, first),
        model=page.model.model_id,
        hardware=recipe_choices.hardware(page, variant, shared.profiles)[0],
        strategy="",
        variant="",
        engine="vllm",
        version=_version(page.model.min_vllm_version),
        image="",
        status="documented",
        nodes=1,
        roles=(),
    )
    devices = {name: one.gpu_count or 8 for name, one in shared.profiles.items()}
    yield from guides.deployments(page.guide, first, usual, devices)


def _version(least: object) -> str:
    return f">={text(least)}" if least else ""


def _line(lines: list[str], strategy: str) -> int:
    """Return the line at which a page names a strategy: in its list, else as a key; 1 if nowhere."""
    for form in (
        rf"\s*- ['\"]?{re.escape(strategy)}['\"]?\s*(#.*)?",
        rf"\s*{re.escape(strategy)}:.*",
    ):
        for number, line in enumerate(lines, start=1):
            if re.fullmatch(form, line):
                return number
    return 1


def _rendered(
    shared: _Shared, page: Page, one: Rendering, shown: str, source: Source
) -> Deployment:
    """Return one rendering as a deployment."""
    profile = shared.profiles.get(one.hardware, Profile())
    shape = Shape(page, one, profile, shared.strategies)
    variant = shape.variant
    roles = tuple(_roles(shape))
    pooled = shape.strategy.deploy_type == "pd_cluster"
    return Deployment(
        id=f"recipes:{shown.partition('/')[2]}:{one.hardware}:{one.strategy}",
        source=source,
        model=variant.model_id or page.model.model_id,
        hardware=one.hardware,
        strategy=one.strategy,
        variant=one.variant,
        engine="vllm",
        version=_version(page.model.min_vllm_version),
        image=recipe_images.image(page, variant, profile, one.hardware),
        status=page.meta.hardware.get(one.hardware, "not listed by the recipe"),
        nodes=max(1, sum(map(shape.pool_nodes, ROLES))) if pooled else one.nodes,
        roles=roles,
        instances=shape.instances,
        recommended=one.recommended,
        notes=tuple(_notes(shape)),
    )


def _roles(shape: Shape) -> Iterator[Role]:
    """Yield the commands of a rendering: of each pool, or of each node of an engine."""
    if shape.strategy.deploy_type == "pd_cluster":
        for role in ROLES:
            words = recipe_words.words(shape, role)
            env = recipe_words.environment(shape, role)
            yield Role.of(role, words, env, max(1, shape.pool_nodes(role)))
        return
    env = recipe_words.environment(shape, "")
    first = "instance" if shape.store else "head" if shape.spans else "mixed"
    yield Role.of(first, recipe_words.words(shape, ""), env)
    behind = "instance-worker" if shape.store else "worker"
    for rank in range(1, shape.rendering.nodes if shape.spans else 1):
        yield Role.of(f"{behind}{rank}", recipe_words.words(shape, "", rank), env)


def _notes(shape: Shape) -> Iterator[str]:
    """Yield what is said beside the commands."""
    if shape.strategy.deploy_type == "pd_cluster" and not shape.pool_nodes("prefill"):
        yield "prefill and decode share one node"
    if shape.store is None or shape.store.deploy_type != STORE:
        return
    yield f"{shape.instances} instances behind the router, by {shape.rendering.serving}"
    if shape.store.min_vllm_version:
        yield f"the KV store needs vllm {_version(shape.store.min_vllm_version)}"
    install = shape.store.vllm.install
    if isinstance(install, dict):
        install = install.get(shape.profile.brand.lower(), "")
    if install:
        yield install
