"""The first call of every notebook: bind its parameters, refuse what is not allowed."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

from kimi_nb.core import fingerprint
from kimi_nb.core import known_secrets as secrecy
from kimi_nb.core.errors import ParameterError, choice
from kimi_nb.notebook.run import ACTIONS, Run
from kimi_nb.params import load as params
from kimi_nb.params import recipes
from kimi_nb.plan import build
from kimi_nb.show import values as show


def start(
    *,
    hw: str,
    model: str,
    site: str = "",
    action: str = "plan",
    confirm: str = "",
    run_dir: str = "",
) -> Run:
    """Bind a notebook's six parameters and say what it is about to look at.

    Raises ParameterError for a parameter that the notebook does not have, or a value that is
    not allowed, with the list of what is.
    """
    _check_injected()
    for name, value in (
        ("hw", hw),
        ("model", model),
        ("site", site),
        ("action", action),
        ("confirm", confirm),
        ("run_dir", run_dir),
    ):
        if not isinstance(value, str):
            raise ParameterError(
                f"{name}: a text is wanted, found {value!r}. With papermill use "
                f"-r {name} VALUE, which keeps texts as they are."
            )
    if action not in ACTIONS:
        raise ParameterError(choice("action", action, ACTIONS))
    served, chip = params.model(model), params.hardware(hw)
    cluster = params.site(site) if site else build.example_site(chip)
    if confirm and action == "deploy" and confirm != cluster.name:
        raise ParameterError(
            f"confirm {confirm!r}: the site is {cluster.name!r}; action deploy "
            "changes it, and is confirmed by this name."
        )
    secrecy.name([cluster.api_key_env or ""])
    folder = (
        params.user_path(run_dir, "run_dir")
        if run_dir
        else runs_folder() / f"{served.name}-{chip.name}"
    )
    run = Run(model, hw, site, action, confirm, Path(os.path.abspath(folder)))
    run.record(
        "start",
        model=served.name,
        hardware=chip.name,
        site=cluster.name,
        action=action,
        **fingerprint.of_program(),
    )
    standing = dict.fromkeys(
        recipes.served(served, chip, recipe.layout).title for recipe in recipes.of(served, chip)
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
                ("folder", str(run.folder)),
            ),
        )
    )
    return run


def runs_folder() -> Path:
    """``runs/`` of the checkout; of the working directory where there is no checkout."""
    root = params.root()
    return (root if (root / "pyproject.toml").is_file() else Path.cwd()) / "runs"


def _check_injected() -> None:
    """Refuse a parameter that the notebook does not declare.

    papermill puts what it was given into a cell of its own, right after the notebook's, and
    only warns about a name that is not declared there.
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
