"""Execute the notebooks of a run without a user interface, one after another or in parallel.

Example::

    runbook.run("k2.5", "a3", only=["03", "05"], jobs=2)

Each notebook leaves an executed .ipynb and an HTML page in ``runs/<utc>-<model>-<hw>/``.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kimi_nb import report, show
from kimi_nb.core import (
    data_files,
    errors,
    evidence,
    fingerprint,
    known_secrets,
    lean_imports,
    paths,
)
from kimi_nb.core.errors import NoRecipeError, ParameterError, WriteError, choice
from kimi_nb.i18n import current, translate
from kimi_nb.notebook import page_links
from kimi_nb.notebook.run import Run
from kimi_nb.notebook.start import runs_folder
from kimi_nb.notebook.subject import Subject
from kimi_nb.params import load
from kimi_nb.plan import build, derivation
from kimi_nb.show import frame

KIMI_ERRORS = {
    name
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.KimiError)
}


@dataclass(frozen=True)
class Result:
    """The result of one notebook: ``status`` is ok, failed or left out; ``fault`` says why."""

    notebook: str
    status: str
    seconds: float
    fault: str


# Clients and managers of kernels that were interrupted. The garbage collector may end the ZeroMQ
# context of one before its sockets are closed, which waits for ever: they stay until the process ends.
_left: list[Any] = []


@dataclass(frozen=True)
class Outcome:
    """The result of a run: its folder, the notebooks' results in order, and the report."""

    folder: Path
    results: tuple[Result, ...]
    report: Path

    @property
    def ok(self) -> bool:
        """Whether no notebook has failed."""
        return all(result.status != "failed" for result in self.results)

    def __str__(self) -> str:
        return (
            str(
                show.Table(
                    f"{self.folder}",
                    ("notebook", "status", "seconds", "fault"),
                    tuple(
                        (result.notebook, result.status, f"{result.seconds:.1f}", result.fault)
                        for result in self.results
                    ),
                )
            )
            + f"\n\nreport: {self.report}"
        )


def which(
    model: str,
    hardware: str,
    only: Iterable[str] | str | None = None,
    *,
    derive: bool = False,
) -> list[str]:
    """Return the notebooks that apply to a model and hardware, as far as they are asked for.

    ``only`` has numbers or names, in a list or separated by commas; None asks for all. With
    ``derive`` they apply to the layouts that can be derived as well. Raises
    NoRecipeError where nothing applies, ParameterError for an unknown notebook.
    """
    listed: dict[str, dict[str, str]] = data_files.facts("notebook/notebooks")
    manifest = {name: entry for name, entry in listed.items() if "kind" not in entry}
    served, chip = load.model(model), load.hardware(hardware)
    layouts = {recipe.layout for recipe in derivation.all_of(served, chip, derive=derive)}
    if not layouts and chip.recipes_of not in served.container_versions:
        derivation.find(served, chip, None, derive=derive)  # raises with what there is
    fits = {"", *layouts, *(["any"] if layouts else [])}
    apply = [name for name, entry in manifest.items() if entry["layout"] in fits]
    if only is None:
        return apply
    words = only.split(",") if isinstance(only, str) else only
    wanted = [word.strip() for word in words if word.strip()]
    if not wanted:
        raise ParameterError(
            f"--only: numbers of notebooks are wanted, such as 03,05; {only!r} names none."
        )
    chosen = []
    for word in wanted:
        named = [
            name
            for name in manifest
            if name == word.removesuffix(".ipynb") or name.partition("_")[0] == word
        ]
        if not named:
            raise ParameterError(choice("notebook", word, manifest))
        if named[0] not in apply:
            raise NoRecipeError(
                f"Notebook {named[0]} is for layout {manifest[named[0]]['layout'] or 'any'}; "
                f"{served.title} on {chip.name} has: {', '.join(sorted(layouts)) or 'none'}."
            )
        chosen += named
    return [name for name in apply if name in chosen]


def left_out(names: Iterable[str], subject: Subject) -> dict[str, str]:
    """Return the notebooks that nobody should execute, each with the known fault of its layout."""
    manifest: dict[str, dict[str, str]] = data_files.facts("notebook/notebooks")
    faults = dict(subject.known_faults)
    if faults and all(recipe.layout in faults for recipe in subject.recipes):
        faults["any"] = next(iter(faults.values()))
    return {name: faults[at] for name in names if (at := manifest[name]["layout"]) in faults}


def run(
    model: str,
    hardware: str,
    *,
    only: Iterable[str] | str | None = None,
    jobs: int = 1,
    site: str = "",
    run_dir: str = "",
    derive: bool = False,
) -> Outcome:
    """Execute the notebooks that apply and return their results; failing notebooks do not raise.

    They are those of the current language. Without ``only``, a notebook is left out whose layout has a known fault in every variant.
    """
    model, hardware = load.canonical("models", model), load.canonical("hardware", hardware)
    names = which(model, hardware, only, derive=derive)
    if site:
        cluster = load.site(site)
        build.check_hardware(cluster, load.hardware(hardware))
        known_secrets.name([cluster.api_key_env or ""])
    if jobs < 1:
        raise ParameterError(f"--jobs: 1 or more is wanted, found {jobs}.")
    folder = _folder(run_dir, load.model(model).name, load.hardware(hardware).name)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        subject = Subject.load(model, hardware, site, derive)
        faults = left_out(names, subject) if only is None else {}
        return _run(names, faults, folder, model, hardware, site, jobs, derive)
    except BlockingIOError:
        raise WriteError(
            f"{folder}: another run is writing there; wait for it, or choose another --run-dir."
        ) from None
    finally:
        os.close(lock)


def _run(
    names: Sequence[str],
    faults: Mapping[str, str],
    folder: Path,
    model: str,
    hardware: str,
    site: str,
    jobs: int,
    derive: bool,
) -> Outcome:
    evidence.record(
        folder,
        "run",
        model=model,
        hardware=hardware,
        site=site,
        notebooks=names,
        **fingerprint.of_program(),
    )
    given: dict[str, str | bool] = {
        "hw": _absolute(hardware),
        "model": _absolute(model),
        "run_dir": str(folder),
        "language": current(),
    }
    if site:
        given["site"] = _absolute(site)
    if derive:
        given["derive"] = True
    lean_imports.quickly("papermill", "nbconvert")
    _quiet()
    try:
        with _shared(names, faults, folder, given):
            results = _execute_all(names, faults, folder, given, jobs)
    except KeyboardInterrupt:
        evidence.record(folder, "end", ok=False, interrupted=True)
        _close(folder)
        raise
    ok = all(result.status != "failed" for result in results)
    evidence.record(folder, "end", ok=ok)
    return Outcome(folder, tuple(results), _close(folder))


@contextlib.contextmanager
def _shared(
    names: Iterable[str], faults: Mapping[str, str], folder: Path, given: Mapping[str, str | bool]
) -> Iterator[None]:
    """Keep one rehearsal for the notebooks that ask the same service, where there are several."""
    if sum(_asks(name) and name not in faults for name in names) < 2:
        yield
        return
    from kimi_nb.notebook import shared_service  # start-up: only for a run

    model, hardware, site = str(given["model"]), str(given["hw"]), str(given.get("site", ""))
    subject = Subject.load(model, hardware, site, bool(given.get("derive")))
    with shared_service.kept(Run(model, hardware, site, "rehearse", "", folder, subject)):
        yield


def _asks(name: str) -> bool:
    """Return whether a notebook asks a service that it need not start."""
    entry = data_files.facts("notebook/notebooks")[name]
    return bool(entry.get("service") == "shared")


def _close(folder: Path) -> Path:
    """Remove secrets from the run's files, and write the report."""
    known_secrets.folder(folder)  # also in files that kernels and other programs wrote
    return write_report(folder)


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Execute notebook 11 on a run's folder, write its page, and return where that stands.

    The executed notebook is written beside it, unless the page goes to ``out``.
    Raises ParameterError where the folder is none of a run, WriteError where it cannot be written.
    """
    verdict, title = (found := report.collect(folder)).verdict, found.title
    target = out or folder / report.FILE
    links = os.path.relpath(folder.resolve(), target.parent.resolve())
    given = {"run_dir": str(folder.absolute()), "links": "" if links == "." else links}
    given["language"] = current()
    lean_imports.quickly("papermill", "nbconvert")
    _quiet()
    with tempfile.TemporaryDirectory(prefix="kimi-nb-") as scratch:
        book = Path(scratch, target.with_suffix(".ipynb").name)
        if fault := _papermill(report.NOTEBOOK, book, given, Path(scratch, "kernels.log")):
            raise WriteError(f"{target}: is not written: notebook {report.NOTEBOOK}: {fault}")
        about = {"report": {"status": verdict.status, "title": title}, **_resources()}
        page, _ = _exporter(threading.get_ident(), current(), "report").from_filename(
            str(book), about
        )
        evidence.write_text(target, known_secrets.text(page))
        if out is None:
            evidence.write_text(target.with_suffix(".ipynb"), book.read_text(encoding="utf-8"))
    return target


def _absolute(name: str) -> str:
    """Return a path as an absolute one, as the kernel runs in another directory; keep a name."""
    is_path = "/" in name or name.endswith((".yaml", ".yml"))
    return str(Path(os.path.expanduser(name)).resolve()) if is_path else name


def _quiet() -> None:
    # papermill and nbconvert warn about things that are intended here.
    for name in ("papermill", "traitlets", "nbconvert"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # After an interruption asyncio logs, with a traceback, what nobody awaits any more.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def _folder(run_dir: str, model: str, hardware: str) -> Path:
    if run_dir:
        return _make(Path.cwd() / load.user_path(run_dir, "--run-dir"), again=True)
    base = runs_folder() / f"{evidence.now()}-{model}-{hardware}"
    for number in range(1, 100):
        # Two runs that start in the same second must not share a folder.
        folder = base if number == 1 else base.with_name(f"{base.name}.{number}")
        if not folder.exists():
            with contextlib.suppress(FileExistsError):
                return _make(folder, again=False)
    raise WriteError(f"{base}: is there already, 99 times; choose --run-dir.")


def _make(folder: Path, again: bool) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=again)
        return folder
    except OSError as error:
        if isinstance(error, FileExistsError) and not again:
            raise
        raise WriteError(
            f"{error.filename}: cannot be written: {error.strerror}. Choose "
            "another --run-dir or mend its permissions."
        ) from None


def _execute_all(
    names: Sequence[str],
    faults: Mapping[str, str],
    folder: Path,
    given: Mapping[str, str | bool],
    jobs: int,
) -> list[Result]:
    from tqdm import tqdm  # start-up: only for a run

    results: list[Result] = []
    with tqdm(
        total=len(names), unit="notebook", file=sys.stderr, disable=not sys.stderr.isatty()
    ) as bar:

        def done(result: Result) -> None:
            bar.update()
            bar.write(
                f"{result.notebook:<20} {result.status:<8} {result.seconds:5.1f} s", file=sys.stderr
            )
            results.append(result)

        def one(name: str) -> Result:
            if name in faults:
                return _recorded(Result(name, "left out", 0.0, faults[name]), folder)
            return _execute(name, folder, given)

        if jobs == 1:
            for name in names:
                bar.set_description(name)
                done(one(name))
        else:
            with ThreadPoolExecutor(jobs) as pool:
                for chain in pool.map(lambda chain: [one(name) for name in chain], _chains(names)):
                    for result in chain:
                        done(result)
    return sorted(results, key=lambda result: names.index(result.notebook))


def _chains(names: Sequence[str]) -> list[list[str]]:
    """Return what may be executed side by side: one after the other those that ask one service.

    Side by side they would measure each other. They take longest, and come second: meanwhile the
    service starts.
    """
    asking = [name for name in names if _asks(name)]
    alone = [[name] for name in names if name not in asking]
    return [*alone[:1], *([asking] if asking else []), *alone[1:]]


def _execute(name: str, folder: Path, given: Mapping[str, str | bool]) -> Result:
    """One notebook, executed by papermill and written beside the others."""
    target = folder / f"{name}.ipynb"
    began = time.monotonic()
    fault = _papermill(name, target, given, folder / "kernels.log")
    if target.exists():
        _html(target)
    seconds = time.monotonic() - began
    result = Result(name, "failed" if fault else "ok", seconds, fault)
    return _recorded(result, folder, output=target.name)


def _recorded(result: Result, folder: Path, output: str = "") -> Result:
    evidence.record(
        folder,
        "notebook",
        notebook=result.notebook,
        status=result.status,
        seconds=round(result.seconds, 2),
        fault=result.fault,
        output=output,
    )
    return result


def _papermill(name: str, target: Path, given: Mapping[str, str | bool], log: Path) -> str:
    """Execute a notebook of ours into a file and return what has failed; "" where nothing has."""
    import papermill  # start-up: only for a run
    from papermill.exceptions import PapermillExecutionError

    source = page_links.notebooks(current()) / f"{name}.ipynb"
    fault = ""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="kimi-nb-") as sockets,
            _kept(raw := Path(sockets, target.name), target),
            _kernels(sockets, log) as options,
        ):
            papermill.execute_notebook(
                str(source),
                str(raw),
                parameters=given,
                kernel_name="python3",
                progress_bar=False,
                cwd=str(source.parent),
                request_save_on_cell_execute=False,
                autosave_cell_every=0,
                **options,
            )
    except PapermillExecutionError as error:
        fault = _fault(error)
    except OSError as error:
        where = error.filename or f"temporary files in {tempfile.gettempdir()} ($TMPDIR)"
        fault = f"{where}: {error.strerror or error}"
    except Exception as error:  # a kernel that does not start is this notebook's result, too
        fault = f"{type(error).__name__}: {error}"
    return known_secrets.text(fault)


@contextlib.contextmanager
def _kept(raw: Path, target: Path) -> Iterator[None]:
    """Save the notebook without secrets, however its execution ends.

    Secrets are removed from parameters, papermill's metadata, outputs, errors and tracebacks.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(ValueError):  # it was cut off in the midst of a line
            _save(raw, target)
        raise
    _save(raw, target)


def _save(raw: Path, target: Path) -> None:
    """Write a notebook without secrets, if it is there. Raises ValueError where it is none."""
    import nbformat  # start-up: only for a run

    if raw.exists():
        notebook = nbformat.read(raw, as_version=4)
        notebook.metadata.setdefault("papermill", {})["output_path"] = str(target)
        clean = nbformat.from_dict(known_secrets.value(notebook))
        evidence.write_text(target, nbformat.writes(clean) + "\n")


@contextlib.contextmanager
def _kernels(sockets: str, log: Path) -> Iterator[dict[str, Any]]:
    """Yield options for kernels that use sockets in a folder of their own and log to a file.

    TCP ports of kernels that start at the same time can collide. At the end no kernel runs:
    nbclient, when interrupted, leaves one that is still starting to itself.
    """
    from jupyter_client.asynchronous.client import AsyncKernelClient  # start-up: only for a run
    from jupyter_client.manager import AsyncKernelManager

    managers: list[AsyncKernelManager] = []
    clients: list[AsyncKernelClient] = []

    class QuietKernelManager(AsyncKernelManager):
        def __init__(self, **options: Any) -> None:
            ipc = {"transport": "ipc", "ip": f"{sockets}/k"} if sys.platform == "linux" else {}
            # In this folder it goes with the rest also where a full disk ends its writing.
            file = f"{sockets}/kernel-{len(managers)}.json"
            super().__init__(**ipc, connection_file=file, **options)
            managers.append(self)

        def client(self, **options: Any) -> AsyncKernelClient:  # type: ignore[override]
            clients.append(made := super().client(**options))
            return made

        # jupyter_client declares its own as a Callable attribute; it is awaited like this one.
        async def start_kernel(self, **options: Any) -> None:  # type: ignore[override]
            with log.open("ab") as file:
                await super().start_kernel(stderr=file, **options)

    try:
        yield {"kernel_manager_class": QuietKernelManager}
    except KeyboardInterrupt:
        _left.extend([*clients, *managers])
        raise
    finally:
        for manager in managers:
            kernel = getattr(manager.provisioner, "process", None)
            if kernel is not None and kernel.poll() is None:
                # A kernel leads a session of its own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(kernel.pid, signal.SIGKILL)
                kernel.wait()


def _fault(error: Any) -> str:
    """Return the error of a failed cell; for an assertion without a message, its line."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error.evalue)).strip()
    if error.ename in KIMI_ERRORS:
        # The kernel's rendering starts with the name again.
        return text.removeprefix(f"{error.ename}: ")
    if not text and error.ename == "AssertionError":
        lines = [line.strip() for line in str(error.source).splitlines()]
        text = next((line for line in lines if line.startswith("assert")), "")
    return f"{error.ename}: {text}"


def _resources() -> dict[str, Any]:
    """Return what the templates of pages need; a page has the style of values once."""
    return {
        "values_css": frame.css(),
        "values_style": frame.style(),
        "told": translate,
    }


def _html(notebook: Path) -> None:
    """Write the executed notebook as one HTML page that loads nothing from elsewhere."""
    body, _ = _exporter(threading.get_ident(), current()).from_filename(str(notebook), _resources())
    evidence.write_text(notebook.with_suffix(".html"), body)


@functools.cache
def _exporter(thread: int, language: str, page: str = "index") -> Any:
    """One exporter a thread: it keeps its compiled templates, and is not made to be shared."""
    from nbconvert import HTMLExporter  # start-up: only for a page
    from nbconvert.preprocessors import TagRemovePreprocessor

    exporter = HTMLExporter(
        language_code=language,
        template_name="kimi",
        template_file=f"{page}.html.j2",
        extra_template_basedirs=[str(paths.DATA / "notebook" / "nbconvert")],
    )
    exporter.register_preprocessor(page_links.preprocess, enabled=True)
    # In the report nothing stands before the verdict but its title.
    exporter.register_preprocessor(
        TagRemovePreprocessor(enabled=True, remove_cell_tags={"remove-cell"}), enabled=True
    )
    return exporter
