"""From texts to a deployment: who starts what on which node, and with which words.

    deployment = assemble.read([Path("prefill.sh"), Path("decode.sh"), Path("proxy.sh")])
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kimi_nb import callers, catalog, commands, docker, params, schema
from kimi_nb.deployment import Batch, Box, Client, Deployment, Fault, Launcher, Program, Proxy
from kimi_nb.reading import bash, compose, files, guess, markdown, quirks
from kimi_nb.rules import security
from kimi_nb.rules.variables import ever_read
from kimi_nb.servers import Server, Spot, server

_MOST_CALLS = 64
# Programs that take a script as one word and run it elsewhere.
_CARRIERS = ("ssh", "tmux", "screen", "pdsh", "setsid", "sbatch", "parallel-ssh", "pssh", "clush")
_ENDS = ("kill", "pkill", "killall", "wait", "cleanup")
_OUTSIDE = re.compile(r"SLURM_|HF_|.*(TOKEN|KEY|SECRET|PASSWORD)$|(HOME|USER|PWD|PATH|HOSTNAME|"
                      r"SHELL|UID|TMPDIR|LOGNAME|RANDOM|BASH_SOURCE|LD_LIBRARY_PATH|PYTHONPATH|"
                      r"CUDA_VISIBLE_DEVICES|ASCEND_RT_VISIBLE_DEVICES|MASTER_ADDR|NODE_RANK|"
                      r"RANK|WORLD_SIZE|LOCAL_RANK|LINENO|SECONDS|IFS|OLDPWD|REPLY)$")


@dataclass
class _Source:
    """A piece of shell text: a file, a fence, or a script that another one writes."""

    file: str
    folder: str
    text: str
    line: int
    document: bool
    tree: Any = None
    calls: list[tuple[tuple[str, ...], Mapping[str, str], str]] = field(default_factory=list)
    includes: bool = False
    unset: dict[str, int] = field(default_factory=dict)

    @property
    def base(self) -> str:
        return os.path.basename(self.file)


@dataclass
class _Found:
    """What was found so far."""

    servers: list[Server] = field(default_factory=list)
    proxies: list[Proxy] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)
    boxes: list[Box] = field(default_factory=list)
    launchers: list[Launcher] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    unread: list[tuple[Spot, str]] = field(default_factory=list)


def read(paths: Sequence[Path | str], engine: str = "", version: str = "",
         hardware: schema.Hardware | None = None) -> Deployment:
    """The deployment of files and folders, as far as it can be read. Raises ParameterErrors."""
    texts, unread = files.collect(paths)
    return of_texts(texts, engine, version, hardware, unread)


def of_texts(texts: Sequence[files.Text], engine: str = "", version: str = "",
             hardware: schema.Hardware | None = None,
             unread: Sequence[tuple[Spot, str]] = (),
             speaks: guess.Spoken | None = None) -> Deployment:
    """`read` for texts that are already here; ``speaks`` is the engine where it is known."""
    told = speaks is not None
    speaks = speaks or guess.engine(texts, engine, version)
    found = _Found(unread=list(unread), faults=list(speaks.faults))
    sources, boxes = _sources(texts, found)
    reader = _Assembler(speaks.engine, found, sources)
    for container, source in boxes:
        reader.container(container, source)
    reader.all()
    if not told and not speaks.known and not speaks.faults:
        again = guess.from_images(found.boxes, engine)
        if again is not None:  # the image's name came together from variables
            return of_texts(texts, engine, version, hardware, unread, again)
    model, weights = guess.model(found.servers)
    # A document shows containers of several kinds of node.
    documents = frozenset(text.name for text in texts if text.kind == "markdown")
    title = texts[0].name if len(texts) == 1 else f"{len(texts)} files"
    return Deployment(
        title=title, engine=speaks.engine, engine_known=speaks.known,
        servers=tuple(found.servers), proxies=tuple(found.proxies), clients=tuple(found.clients),
        boxes=tuple(found.boxes), launchers=tuple(found.launchers),
        batches=tuple(found.batches), programs=tuple(found.programs),
        faults=tuple(found.faults), model=model, weights=weights, hardware=hardware,
        devices_per_node=hardware.devices.count if hardware else guess.devices(
            [box for box in found.boxes if box.spot.file not in documents], found.batches),
        unread=tuple(found.unread), documents=documents)


def _sources(texts: Sequence[files.Text], found: _Found
             ) -> tuple[list[_Source], list[tuple[compose.Container, _Source]]]:
    sources, boxes = [], []

    def in_yaml(text: str, name: str, folder: str, line: int) -> None:
        made, why = compose.containers(text)
        if why:
            found.unread.append((Spot(name, name), why))
        for one in made:
            boxes.append((one, _Source(name, folder, "", line, True)))

    for text in texts:
        if text.kind == "yaml":
            in_yaml(text.text, text.name, text.folder, 1)
        elif text.kind == "markdown":
            for fence in markdown.fences(text.text):
                if fence.kind == "yaml":
                    in_yaml(fence.text, text.name, text.folder, fence.line)
                else:
                    sources.append(_Source(text.name, text.folder, fence.text, fence.line, True))
        else:
            sources.append(_Source(text.name, text.folder, text.text, 1, False))
    return sources, boxes


class _Assembler:
    """Reads every source once, those that others call with what they are called with."""

    def __init__(self, engine: catalog.Engine, found: _Found, sources: list[_Source]) -> None:
        self.engine = engine
        self.found = found
        self.sources = sources
        self.by_name = {(source.folder, source.base): source for source in sources
                        if not source.document}
        self.launched: set[str] = set()
        self.serving: dict[str, int] = {}
        self.folders = {source.folder for source in sources}

    def all(self) -> None:
        """Read everything."""
        scripts = []
        for source in list(self.sources):
            masked = quirks.masked(source.text)
            source.tree = bash.tree(masked)
            faults = list(quirks.find(source.text, source.tree, source.file, source.line,
                                      source.document))
            self.found.faults += faults
            if any(fault.rule.startswith("shell/continuation-") and not fault.rule.endswith("-end")
                   for fault in faults):
                masked = quirks.mended(masked, faults, source.line)
                source.text, source.tree = masked, bash.tree(masked)
            script = bash.interpret(masked, source.file, source.line, root=source.tree,
                                    included=self._included(source))
            scripts.append((source, script))
            for line, why in script.unread:
                if why:
                    self.found.unread.append((Spot(source.file, source.file, line), why))
            if not source.document:
                self.found.unread += [
                    (Spot(source.file, source.file, line + source.line),
                     f"the grammar stops at: {said}")
                    for line, said in quirks.unreadable(source.tree.root_node)][:3]
            for name, (text, line) in script.written.items():
                if "vllm" in text:
                    inner = _Source(source.file, source.folder, text, line, source.document)
                    inner.tree = bash.tree(quirks.masked(text))
                    scripts.append((inner, bash.interpret(quirks.masked(text), source.file, line,
                                                          root=inner.tree)))
                    self.by_name.setdefault((source.folder, os.path.basename(name)), inner)
        for source, script in scripts:
            source.includes = bool(script.sources)
            self._calls(source, script)
            if any(commands.serve_at(command.argv) is not None for command in script.commands):
                self.serving[source.folder] = self.serving.get(source.folder, 0) + 1
        for source, script in scripts:
            if source.calls:
                for arguments, env, node in source.calls[:_MOST_CALLS]:
                    again = bash.interpret(quirks.masked(source.text), source.file, source.line,
                                           arguments, env, source.tree,
                                           included=self._included(source))
                    self._commands(source, again, node)
            else:
                self._commands(source, script, "")
            self._faults(source, script)
            self._batch(source, script)

    def _calls(self, source: _Source, script: bash.Script) -> None:
        """Which scripts of these files a script starts, and with what."""
        for command in script.commands:
            argv = command.argv
            at = commands.program_at(argv, commands.LAUNCHER)
            if at is not None:
                spot = Spot(f"{source.file}:{command.line}", source.file, command.line)
                made = commands.launcher(argv, spot, self._node(source))
                many = sum(1 for one in script.commands if commands.program_at(
                    one.argv, commands.LAUNCHER) is not None) > 1
                if many:
                    made = replace(made, node=f"{source.file}:{command.line}")
                self.found.launchers.append(made)
                target = self.by_name.get((source.folder, "run_dp_template.sh"))
                if target is not None:
                    target.calls += [(words, command.env, made.node)
                                     for words in _ranks(made)]
                continue
            for index, word in enumerate(argv[:4]):
                name = os.path.basename(word)
                target = self.by_name.get((source.folder, name))
                if target is not None and target is not source and name.endswith(".sh") \
                        and (index == 0 or argv[index - 1] in ("bash", "sh", "-x", "-e", "exec",
                                                               "nohup", "source", ".", "srun")):
                    rest = argv[index + 1:]
                    if rest or command.env:
                        clean = {key: text for key, text in command.env.items()
                                 if "${" not in text}
                        target.calls.append((rest, clean, ""))
                    break

    def _included(self, source: _Source) -> Callable[[str], str | None]:
        """How a script finds the files that it sources: beside itself, by their own names."""
        def text(name: str) -> str | None:
            found = self.by_name.get((source.folder, os.path.basename(name)))
            return quirks.masked(found.text) if found is not None and found is not source else None

        return text

    def _node(self, source: _Source) -> str:
        """The node of a script: its folder, where each folder is a node, else the file."""
        alone = self.serving.get(source.folder, 0) <= 1
        if source.folder and len(self.folders) > 1 and alone:
            return source.folder
        return source.file if not source.document else f"{source.file}:{source.line}"

    # Commands ---------------------------------------------------------------------------

    def _commands(self, source: _Source, script: bash.Script, node: str,
                  depth: int = 0) -> None:
        count = sum(1 for command in script.commands
                    if commands.serve_at(command.argv) is not None)
        over = False
        for command in script.commands:
            # What starts after a kill or a wait may run without what was started before.
            over = over or os.path.basename(command.argv[0]) in _ENDS or (
                command.argv[:1] in (("docker",), ("podman",))
                and command.argv[1:2] in (("rm",), ("stop",), ("kill",)))
            certain = command.certain and not over and not source.document
            self._one(source, replace(command, certain=certain), node, count <= 1, depth)

    def _one(self, source: _Source, command: bash.Command, node: str, alone: bool,
             depth: int) -> None:
        argv = command.argv
        spot = Spot(f"{source.file}:{command.line}", source.file, command.line)
        home = node or self._node(source)
        at = docker.container_at(argv)
        if at is not None:
            self._docker(source, command, spot, home, at, alone, depth)
        elif (inner := _inner(command)) is not None and depth < 4:
            text, line = inner
            script = bash.interpret(quirks.masked(text), source.file, line, None, command.env,
                                    env_lines=command.env_lines)
            sub = [replace(one, certain=one.certain and command.certain)
                   for one in script.commands]
            for one in sub:
                self._one(source, one, node, alone, depth + 1)
            return
        elif (start := commands.serve_at(argv)) is not None:
            if "--omni" in argv:
                self.found.unread.append((spot, "vllm-omni has flags of its own"))
            elif "--help" not in argv and "-h" not in argv[start:]:
                before = command.words[:start]
                env, lines = dict(command.env), dict(command.env_lines)
                for word in before:  # env A=1, docker exec -e A=1
                    if match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word.text, re.DOTALL):
                        env[match[1]], lines[match[1]] = match[2], word.line
                self._server(source, command.words, start, env, lines, spot,
                             _step_node(before) or home,
                             command.certain and (alone or command.background))
        elif commands.is_proxy(argv):
            self.found.proxies.append(commands.proxy(argv, spot, ""))
        elif (client := callers.client(self.engine, argv, spot)) is not None:
            self.found.clients.append(client)
        elif commands.program_at(argv, commands.LAUNCHER) is None:
            self.found.programs.append(Program(spot, argv, {}))
            return
        self._words(source, command)

    def _server(self, source: _Source, words: Sequence[bash.Word], start: int,
                env: Mapping[str, str], env_lines: Mapping[str, int], spot: Spot, node: str,
                certain: bool) -> None:
        argv = tuple(word.text for word in words)
        lines = tuple(word.line for word in words)
        made = server(self.engine, argv, env, spot, node, start, lines, certain,
                      env_lines=env_lines)
        if source.calls and made.single and made.rank is not None:
            named = Spot(f"{node} rank {made.rank}", spot.file, spot.line)
            made = replace(made, spot=named)
        self.found.servers.append(made)

    def _docker(self, source: _Source, command: bash.Command, spot: Spot, home: str, at: int,
                alone: bool, depth: int) -> None:
        box = docker.box(command.argv, command.env, spot, home, at)
        if not box.host_network:
            box = replace(box, node=spot.name)  # a network, and so ports, of its own
            home = spot.name
        self.found.boxes.append(box)
        if not box.argv:
            return
        entry = box.options.get("--entrypoint", ())[-1:]
        words = (*(bash.Word(text, command.line) for text in entry),
                 *command.words[len(command.words) - len(box.argv):])
        lines = dict.fromkeys(box.env, command.line)
        inside = replace(command, words=words, env=box.env, env_lines=lines)
        before = len(self.found.servers)
        self._inside(source, inside, box, spot, home, alone, depth)
        self._sees(box, before)

    def _inside(self, source: _Source, command: bash.Command, box: Box, spot: Spot, home: str,
                alone: bool, depth: int) -> None:
        """What runs inside a container."""
        if _inner(command) is not None or commands.serve_at(command.argv) is not None:
            self._one(source, replace(command, unset=()), home, alone, depth + 1)
        elif box.runs_engine:
            entry = " ".join(box.options.get("--entrypoint", ()))
            if entry and "vllm" not in entry:
                return
            self._words(source, replace(command, unset=()))
            words = [bash.Word("vllm", command.line), bash.Word("serve", command.line),
                     *command.words]
            self._server(source, words, 2, box.env, command.env_lines, spot, home,
                         command.certain and alone)

    def container(self, one: compose.Container, source: _Source) -> None:
        """A container of a compose or Kubernetes file."""
        shift = source.line - 1
        line = one.line + shift
        spot = Spot(f"{source.file}:{line}", source.file, line)
        # Fences of a document are alternatives, each on a node of its own.
        host = source.file if source.line == 1 else f"{source.file}:{source.line}"
        node = host if one.host_network else f"{spot.name} ({one.name})"
        argv = tuple(word for word, _ in (*one.entrypoint, *one.command))
        options = {name: values for name, values in (
            ("--privileged", ("true",) if one.privileged else ()),
            ("--network", ("host",) if one.host_network else ()),
            ("--env-file", tuple(one.env_files))) if values}
        runs = docker.serves(argv) or (
            not one.entrypoint and docker.serves_by_itself(one.image) and bool(argv))
        env_lines = {name: at + shift for name, at in one.env_lines.items()}
        devices = (*docker.accelerators(one.devices), *docker.gpus(one.gpus))
        box = Box(spot, node, one.image, one.name, argv, tuple(one.mounts), devices,
                  () if one.host_network else tuple(one.ports), one.env, options, runs,
                  tuple(one.passes))
        self.found.boxes.append(box)
        words = tuple(bash.Word(word, at + shift) for word, at in (*one.entrypoint, *one.command))
        if words:
            before = len(self.found.servers)
            command = bash.Command(words, one.env, env_lines, line, one.certain, True)
            self._inside(source, command, box, spot, box.node, True, 0)
            self._sees(box, before)

    def _sees(self, box: Box, before: int) -> None:
        """Engines inside a container see the devices that it gets, under the node's numbers."""
        numbers = docker.device_numbers(box.devices)
        for index, one in enumerate(self.found.servers[before:], start=before):
            ray = "ray" in (one.text("distributed-executor-backend"),
                            one.text("data-parallel-backend"))
            if numbers is None or ray:  # ray may place ranks on other nodes
                continue
            inside = one.devices
            if inside is None and not any(re.fullmatch(
                    "(CUDA|ASCEND_RT|HIP|ROCR)_VISIBLE_DEVICES", name) for name in one.env):
                inside = tuple(range(len(numbers)))
            if inside is not None and all(device < len(numbers) for device in inside):
                self.found.servers[index] = replace(
                    one, devices=tuple(numbers[device] for device in inside))

    # Faults -----------------------------------------------------------------------------

    def _words(self, source: _Source, command: bash.Command) -> None:
        """Placeholders and unset variables in the words of a command that matters."""
        seen = set()
        for word in (*command.words, *(bash.Word(text, command.env_lines.get(name, command.line))
                                       for name, text in command.env.items())):
            match = _PLACEHOLDER.search(word.text)
            if match and (match[0], word.line) not in seen:
                seen.add((match[0], word.line))
                shown = match[0].replace(quirks.MARK[0], "<").replace(quirks.MARK[1], ">")
                self.found.faults.append(Fault(
                    "shell/placeholder", Spot(f"{source.file}:{word.line}", source.file,
                                              word.line), f"a placeholder is left in: {shown}"))
        if source.document:
            return
        for name in command.unset:
            if not _OUTSIDE.match(name) and not source.includes:
                source.unset.setdefault(name, command.line)

    def _faults(self, source: _Source, script: bash.Script) -> None:
        # One or two are forgotten, more come from a caller by intention.
        if len(source.unset) < 3:
            for name, line in source.unset.items():
                self.found.faults.append(Fault(
                    "shell/unset", Spot(f"{source.file}:{line}", source.file, line),
                    f"${name} is set nowhere in this script"))
        serves = any(commands.serve_at(command.argv) is not None for command in script.commands)
        known = {*ever_read(), *params.data("versions")["others"]}
        for name, var in script.variables.items():
            if var.exported and security.looks_secret(name, var.text or ""):
                spot = Spot(f"{source.file}:{var.line}", source.file, var.line)
                self.found.programs.append(Program(spot, ("export", name), {name: var.text or ""}))
            if serves and not var.exported and name not in script.used and name in known:
                self.found.faults.append(Fault(
                    "shell/unexported", Spot(f"{source.file}:{var.line}", source.file, var.line),
                    f"{name} is set and not exported: the engine does not see it"))

    def _batch(self, source: _Source, script: bash.Script) -> None:
        options, lines = [], {}
        for number, line in enumerate(source.text.split("\n")):
            match = re.match(r"#SBATCH\s+(.+?)\s*(?:\s#.*)?$", line)
            if match:
                options.append(match[1])
                for name in commands.sbatch([match[1]]):
                    lines[name] = number + source.line
        if options:
            spot = Spot(source.file, source.file, source.line)
            self.found.batches.append(commands.batch(
                options, [os.path.basename(command.argv[0]) for command in script.commands
                          if command.argv], spot, lines))


def _step_node(words: Sequence[bash.Word]) -> str:
    """The node on which ``srun -w NODE`` puts a step; "" where it says none."""
    texts = [word.text for word in words]
    if not any(os.path.basename(text) == "srun" for text in texts):
        return ""
    for index, text in enumerate(texts):
        if text in ("-w", "--nodelist") and index + 1 < len(texts):
            return texts[index + 1]
        if text.startswith("--nodelist="):
            return text.partition("=")[2]
    return ""


_PLACEHOLDER = re.compile(
    rf"{quirks.MARK[0]}[^{quirks.MARK[1]}]*{quirks.MARK[1]}|\b\d+\.(?:\d+\.)*x{{1,3}}\.[\dx.]*|"
    r"^x{3,}$|\bx{1,3}\.x{1,3}\.x{1,3}\.x{1,3}\b|/path/to\b|\|[a-z_]+_version\||"
    r"\byour[_-][a-z_-]+|\bYOUR_[A-Z_]+|<[A-Z_]{3,}>")


def _inner(command: bash.Command) -> tuple[str, int] | None:
    """The script in ``bash -c SCRIPT``, or in the last word of ssh; None for other commands."""
    words = command.words
    for index, word in enumerate(words[:-1]):
        name = os.path.basename(word.text)
        if name in ("bash", "sh") and re.fullmatch(r"-[a-z]*c", words[index + 1].text) \
                and index + 2 < len(words):
            return words[index + 2].text, words[index + 2].line
    if words and os.path.basename(words[0].text) in _CARRIERS:
        for word in reversed(words[1:]):
            text = word.text.removeprefix("--wrap=")
            if "vllm" in text and " " in text:
                return text, word.line
    return None


def _ranks(made: Launcher) -> Iterator[tuple[str, ...]]:
    """What launch_online_dp.py hands to its template, rank by rank."""
    if made.dp is None or made.tp is None or made.local is None or made.first is None \
            or made.http_port is None or made.local > _MOST_CALLS:
        return
    for index in range(made.local):
        devices = ",".join(map(str, range(index * made.tp, (index + 1) * made.tp)))
        yield (devices, str(made.http_port + index), str(made.dp), str(made.first + index),
               made.address, str(made.rpc_port or ""), str(made.tp))


__all__ = ["of_texts", "params", "read"]
