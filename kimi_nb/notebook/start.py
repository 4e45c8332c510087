"""Bind a notebook's parameters in its first call, and refuse those that are not allowed."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_nb import show
from kimi_nb.core import fingerprint, known_secrets, paths
from kimi_nb.core.errors import ParameterError, choice, short
from kimi_nb.i18n import languages
from kimi_nb.notebook.run import Run
from kimi_nb.notebook.serving import ACTIONS
from kimi_nb.notebook.subject import Subject
from kimi_nb.params import fields, load, recipes
from kimi_nb.service import confirmation

if TYPE_CHECKING:
    from kimi_nb.report.sections import Sections


def start(
    *,
    hw: str,
    model: str,
    site: str = "",
    action: str = "plan",
    confirm: str = "",
    run_dir: str = "",
    language: str = "",
    derive: bool = False,
) -> Run:
    """Bind a notebook's first parameters and show what it is about to work on.

    ``language`` is "en" or "zh"; "" leaves it to the environment.
    With ``derive`` deployments that nobody has published are derived from the nearest ones.
    Raises ParameterError for a parameter that the notebook does not declare, or a value that is not
    allowed; the message lists what is allowed.
    """
    use_language(language)
    _check_injected()
    _check_texts(hw=hw, model=model, site=site, action=action, confirm=confirm, run_dir=run_dir)
    if action not in ACTIONS:
        raise ParameterError(choice("action", action, ACTIONS))
    model, hw = load.canonical("models", model), load.canonical("hardware", hw)
    if not isinstance(derive, bool):
        raise ParameterError(f"derive: True or False is wanted, found {short(repr(derive))}.")
    subject = Subject.load(model, hw, site, derive)
    served, chip, cluster = subject.named, subject.hardware, subject.site()
    if action == "deploy":
        confirmation.check_transport(cluster.name, cluster.transport)
    if action == "deploy" and cluster.transport != "slurm":
        addresses = [node.address for node in cluster.nodes]
        if all(map(fields.is_example, addresses)):  # of some, a plan may need none
            confirmation.check_addresses(cluster.name, addresses)
    if confirm and action == "deploy":  # without one, the gate of a deployment asks for it
        confirmation.check(cluster.name, confirm)
    known_secrets.name([cluster.api_key_env or ""])
    folder = (
        load.user_path(run_dir, "run_dir")
        if run_dir
        else runs_folder() / f"{served.name}-{chip.name}"
    )
    run = Run(model, hw, site, action, confirm, Path(os.path.abspath(folder)), subject)
    run.record(
        "start",
        model=served.name,
        hardware=chip.name,
        site=cluster.name,
        action=action,
        **fingerprint.of_program(),
    )
    standing = dict.fromkeys(
        recipes.served(served, chip, recipe.layout).title for recipe in subject.recipes
    )
    stands = (
        [
            (
                "served",
                f"{' and '.join(standing)} in place of it: {chip.name} has no room for "
                "the real one",
            )
        ]
        if standing and served.title not in standing
        else []
    )
    show.show(
        show.Table(
            "",
            ("what", "is"),
            (
                ("model", served.title),
                *stands,
                ("hardware", chip.title),
                (
                    "site",
                    f"{cluster.name}: "
                    f"{len(cluster.nodes)} node{'s' * (len(cluster.nodes) > 1)}, {cluster.transport}",
                ),
                ("action", f"{action}: {ACTIONS[action]}"),
                *([("derive", _derived(subject))] if derive else []),
                ("folder", str(run.folder)),
            ),
        )
    )
    return run


def _derived(subject: Subject) -> str:
    """Return which layouts are DERIVED, and from what."""
    made = [recipe for recipe in subject.recipes if recipe.derivation]
    return (
        "; ".join(
            f"{recipe.layout}: DERIVED from {recipe.derivation.base}"
            for recipe in made
            if recipe.derivation
        )
        or "nothing: every layout that is possible is documented"
    )


def report(
    *, hw: str, model: str, run_dir: str = "", links: str = "", language: str = ""
) -> Sections:
    """Read the folder of a run; without ``run_dir`` that of a model on a hardware.

    Nothing is recorded: the run has ended. Raises ParameterError where the folder is none of a run.
    """
    from kimi_nb.report.collect import collect  # start-up: only notebook 11 reads a run
    from kimi_nb.report.sections import Sections

    use_language(language)
    _check_injected()
    _check_texts(hw=hw, model=model, run_dir=run_dir, links=links)
    name = run_dir or f"{load.model(model).name}-{load.hardware(hw).name}"
    return Sections(
        collect(Path(os.path.expanduser(name)) if run_dir else runs_folder() / name), links
    )


def runs_folder() -> Path:
    """Return ``runs/`` of the working directory.

    JupyterLab executes a notebook in the notebook's folder: in ``notebooks/`` and ``workspace/`` of
    a checkout, and below, the result is ``runs/`` of the checkout. Raises ParameterError where the
    working directory was removed.
    """
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise ParameterError(
            "The working directory has been removed: change to another one, or name the run's folder."
        ) from None
    root = paths.root()
    own = any(here.is_relative_to(root / name) for name in ("notebooks", "workspace"))
    own = own and (root / "pyproject.toml").is_file()
    return (root if own else here) / "runs"


def use_language(language: str) -> None:
    """Set the language of tables, findings and the panel; "" leaves it to the environment.

    Raises ParameterError for a language that there is not.
    """
    _check_texts(language=language)
    if language not in ("", *languages.LANGUAGES):
        raise ParameterError(choice("language", language, languages.LANGUAGES))
    languages.use(language)


def _check_texts(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, str):
            raise ParameterError(
                f"{name}: a text is wanted, found {short(repr(value))}. With papermill use "
                f"-r {name} VALUE, which keeps texts as they are."
            )


def _check_injected() -> None:
    """Refuse a parameter that the notebook does not declare.

    papermill adds a cell with the parameters it was given right after the notebook's own, and only
    warns about a name that is not declared there.
    """
    module = sys.modules.get("IPython")
    interpreter = module.get_ipython() if module else None
    cells = interpreter.user_ns.get("In", []) if interpreter else []
    for at in range(1, len(cells)):
        if cells[at].startswith("# Parameters\n"):
            declared, given = _assigned(cells[at - 1]), _assigned(cells[at])
            for name in given:
                if declared and name not in declared:
                    raise ParameterError(choice("notebook parameter", name, declared))


def _assigned(cell: str) -> list[str]:
    try:
        statements = ast.parse(cell).body
    except SyntaxError:
        return []
    names = []
    for statement in statements:
        targets = (
            statement.targets
            if isinstance(statement, ast.Assign)
            else [statement.target]
            if isinstance(statement, ast.AnnAssign)
            else []
        )
        names += [target.id for target in targets if isinstance(target, ast.Name)]
    return names
