"""What an installation without extras lacks, and how to get it.

with extras.command("rehearse"):      # KimiError: rehearse needs psutil, pysocks: pip ...
    ...

`BASE` is what plan, check and doctor import; each of `EXTRAS` what its rooms import or start. A
test holds both to pyproject.toml and to the imports of every module.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

from kimi_nb.core.errors import KimiError

BASE = (
    "hyperscan",
    "markdown-it-py",
    "packaging",
    "pydantic",
    "pydantic-core",
    "pyyaml",
    "tree-sitter",
    "tree-sitter-bash",
    "wcwidth",
)
EXTRAS = {
    "rehearse": (
        "httptools",
        "psutil",
        "pysocks",
        "uvicorn",
        "vllm-router",
    ),
    "deploy": ("gevent", "psutil", "pyinfra", "pysocks"),
    "prove": (
        "aiohttp",
        "jsonschema",
        "matplotlib",
        "numpy",
        "pandas",
        "prometheus-client",
        "psutil",
        "pysocks",
        "scipy",
        "tqdm",
    ),
    # Notebooks call all of these rooms.
    "notebook": (
        "ipykernel",
        "ipython",
        "ipywidgets",
        "jupyter-client",
        "nbconvert",
        "nbformat",
        "papermill",
    ),
}
# The extra that a command needs from its start. The others say what they lack when they come to it.
COMMANDS = {
    "rehearse": ("rehearse",),
    "drill": ("rehearse",),
    "up": ("deploy",),
    "status": ("deploy",),
    "logs": ("deploy",),
    "down": ("deploy",),
    "verify": ("prove",),
    "run": ("notebook", "rehearse", "deploy", "prove"),
}
_MODULES = {
    "ipython": "IPython",
    "markdown-it-py": "markdown_it",
    "pysocks": "socks",
    "pyyaml": "yaml",
}


def module(package: str) -> str:
    """Return the name by which a package is imported."""
    return _MODULES.get(package, package.replace("-", "_"))


@contextlib.contextmanager
def command(name: str) -> Iterator[None]:
    """Run a command of kimi-nb. Raises KimiError where a package is missing.

    It is raised before anything is started, as some packages are needed only by processes that the
    command starts.
    """
    extras = COMMANDS.get(name, ())
    wanted = dict.fromkeys(package for extra in extras for package in EXTRAS[extra])
    missing = [one for one in wanted if importlib.util.find_spec(module(one)) is None]
    if missing:
        raise _error(name, missing, extras[0])
    with imports(name):
        yield


@contextlib.contextmanager
def imports(what: str, extra: str = "") -> Iterator[None]:
    """Raise KimiError where ``what`` needs a package of ours that is not installed.

    The message names ``extra``, or else the first extra that contains the package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        top = (error.name or "").partition(".")[0]
        for name, packages in {"": BASE, **EXTRAS}.items():
            for package in packages:
                if module(package) == top:
                    raise _error(what, [package], name and (extra or name)) from None
        raise


def _error(what: str, packages: list[str], extra: str) -> KimiError:
    more = f" and {len(packages) - 5} more" if len(packages) > 5 else ""
    wanted = f"'kimi_nb[{extra}]'" if extra else "kimi_nb"
    return KimiError(f"{what} needs {', '.join(packages[:5])}{more}: pip install {wanted}")
