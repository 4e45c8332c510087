"""An image for the tests' containers: a shell, a few programs, and the stand-in engine.

    images.write(Path("image.tar"), {"one": SimulatedSite.of(plan)})

It is a file for `docker import`. Programs are those of this machine, with the libraries that they
are linked to; `vllm` is ``engine.py`` with this interpreter, the project and the packages that the
project's engine loads, each where it is here.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from kimi_nb.core import paths
from kimi_nb.rehearse.simulated_site import SimulatedSite

HERE = Path(__file__).resolve().parent
SITES = "/opt/sites"  # of the image: what its engine pretends, one file for each plan
_PROGRAMS = (
    "bash",
    "sh",
    "cat",
    "df",
    "env",
    "grep",
    "id",
    "ls",
    "readlink",
    "sleep",
    "stat",
    "true",
    "uname",
)
# Of the standard library, what no engine loads and what takes most of the room.
_LEFT_OUT = re.compile(
    r"(^|/)(test|tests|idlelib|ensurepip|tkinter|lib2to3|turtledemo|pydoc_data|"
    r"distutils|config-[^/]*|site-packages|dist-packages)(/|$)|/_tkinter\.|\.opt-\d\.pyc$"
)
_LOADED = """
import sys
from kimi_nb.plan import build
from kimi_nb.rehearse.engine.start import serve
from kimi_nb.rehearse.simulated_site import SimulatedSite
serve.warm(SimulatedSite.of(build.plan("k2.5", "a3", "single")))
for module in list(sys.modules.values()):
    print(getattr(module, "__file__", None) or "")
"""


def write(path: Path, sites: Mapping[str, SimulatedSite]) -> None:
    """The image as an archive."""
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as image:
        programs = [Path(shutil.which(name) or f"/bin/{name}") for name in _PROGRAMS]
        for program in programs:
            image.add(program.resolve(), f"bin/{program.name}")
        linked = [*map(Path.resolve, programs), *_python(image)]
        for library in _libraries(linked):
            image.add(library.resolve(), str(library))
        _text(image, "etc/passwd", "root:x:0:0:root:/root:/bin/bash\n")
        _text(image, "etc/group", "root:x:0:\nvideo:x:44:\n")
        for name, site in sites.items():
            _text(image, f"{SITES}/{name}.json", json.dumps(asdict(site)))


def _python(image: tarfile.TarFile) -> list[Path]:
    """Put the interpreter, its library, the packages, the project and the engine in; the files
    that are linked to something."""
    added: list[Path] = []
    program = Path(sys.executable).resolve()
    image.add(program, str(program))
    link = tarfile.TarInfo("usr/local/bin/python3")
    link.type, link.linkname = tarfile.SYMTYPE, str(program)
    image.addfile(link)
    where = {
        f"{kind}base": prefix
        for kind, prefix in (
            ("", sys.base_prefix),
            ("installed_", sys.base_prefix),
            ("plat", sys.base_exec_prefix),
            ("installed_plat", sys.base_exec_prefix),
        )
    }
    for base in {sysconfig.get_path(kind, vars=where) for kind in ("stdlib", "platstdlib")}:
        _tree(image, Path(base), base, added)
    for package in _packages():
        _tree(image, package, f"opt/packages/{package.name}", added)
    _tree(image, paths.PACKAGE, "opt/kimi_nb/kimi_nb", added)
    _tree(image, paths.root() / "params", "opt/kimi_nb/params", added)
    engine = image.gettarinfo(HERE / "engine.py", "usr/local/bin/vllm")
    engine.mode = 0o755
    with (HERE / "engine.py").open("rb") as file:
        image.addfile(engine, file)
    return [program, *(path for path in added if ".so" in path.suffixes)]


def _tree(image: tarfile.TarFile, source: Path, target: str, added: list[Path]) -> None:
    def take(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        inside = info.name.removeprefix(target.lstrip("/")).lstrip("/")
        if _LEFT_OUT.search(inside):
            return None
        added.append(source / inside if inside else source)
        return info

    image.add(source, target, filter=take)


def _packages() -> Iterable[Path]:
    """The installed packages and modules that an engine loads."""
    loaded = subprocess.run(
        [sys.executable, "-c", _LOADED],
        cwd=paths.PACKAGE.parent,
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout.splitlines()
    found = (re.match(r"(.*/(?:site|dist)-packages/[^/]+)", one) for one in loaded)
    return sorted({Path(one[1]) for one in found if one})


def _libraries(programs: Iterable[Path]) -> set[Path]:
    told = subprocess.run(
        ["ldd", *map(str, programs)],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
    ).stdout
    return {Path(one) for one in re.findall(r"^\t(?:\S+ => )?(/\S+) \(", told, re.MULTILINE)}


def _text(image: tarfile.TarFile, name: str, text: str) -> None:
    info = tarfile.TarInfo(name.lstrip("/"))
    info.size = len(text.encode())
    image.addfile(info, io.BytesIO(text.encode()))
