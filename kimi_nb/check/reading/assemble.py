"""Build a deployment from texts: which engine starts on which node, and with which words.

>>> from kimi_nb.check.reading import assemble
>>> from kimi_nb.check.reading.files import Text
>>> text = Text("run.sh", "", "bash", "vllm serve m --port 8001")
>>> assemble.of_texts([text], "vllm", "0.19.1").servers[0].http_port
8001
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.reading import (
    bash,
    compose,
    files,
    ignores,
    inference,
    layouts,
    quirks,
    unset_variables,
)
from kimi_nb.check.reading.script import Command, Script, Word
from kimi_nb.check.reading.sources import Found, Source, sources
from kimi_nb.check.reading.syntax import Unparsed, tree
from kimi_nb.check.view import clients, commands, container_start, engine_view
from kimi_nb.check.view.deployment import Box, Deployment, Launcher, Program
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.params import schema

_MOST_CALLS = 64
_TEMPLATE = "run_dp_template.sh"  # what launch_online_dp.py runs
# Programs that take a script as one word and run it elsewhere.
_CARRIERS = ("ssh", "tmux", "screen", "pdsh", "setsid", "sbatch", "parallel-ssh", "pssh", "clush")
_SSH_VALUES = set("BbcDEeFIiJLlmOoPpQRSWw")
_MOST_ENGINES = 1024  # of all files, beyond which nobody reads findings
_ENDS = ("kill", "pkill", "killall", "wait", "cleanup")


def read(
    paths: Sequence[Path | str],
    engine: str = "",
    version: str = "",
    hardware: schema.Hardware | None = None,
) -> Deployment:
    """Read the deployment of files and folders, as far as it can be read.

    Raises ParameterError for a path that cannot be read, and for a version that does not exist.
    """
    texts, unread = files.collect(paths)
    return of_texts(texts, engine, version, hardware, unread)


def read_all(
    paths: Sequence[Path | str],
    engine: str = "",
    version: str = "",
    hardware: schema.Hardware | None = None,
) -> list[Deployment]:
    """Read the deployment of files, once for each version that it is to be judged by.

    They are one, or two for a version that is not listed: the listed ones before and after it.
    Raises what `read` does.
    """
    texts, unread = files.collect(paths)
    first = of_texts(texts, engine, version, hardware, unread)
    return [
        first,
        *(
            of_texts(texts, engine, "", hardware, unread, inference.Spoken(other, True))
            for other in first.between
        ),
    ]


def of_texts(
    texts: Sequence[files.Text],
    engine: str = "",
    version: str = "",
    hardware: schema.Hardware | None = None,
    unread: Sequence[tuple[Spot, str]] = (),
    speaks: inference.Spoken | None = None,
) -> Deployment:
    """Build the deployment of texts that are already read.

    ``unread`` is what was not read of the files (its spots are named by their paths), and why;
    ``speaks`` is the engine if it is known.
    """
    told = speaks is not None
    speaks = speaks or inference.engine(texts, engine, version)
    found = Found(unread=list(unread), faults=list(speaks.faults))
    shells, boxes = sources(texts, found)
    reader = _Assembler(speaks.engine, found, shells)
    for container, source in boxes:
        reader.container(container, source)
    reader.all()
    if not told and not speaks.known and not speaks.faults and not version:
        again = inference.from_images(found.boxes, engine)
        if again is not None:  # the image's name came together from variables
            return of_texts(texts, engine, version, hardware, unread, again)
    model, weights = inference.model(found.servers)
    # A document shows containers of several kinds of node.
    documents = frozenset(
        {text.name for text in texts if text.kind == "markdown"}
        | {source.file for source in shells if source.document}
    )
    title = texts[0].name if len(texts) == 1 else f"{len(texts)} files"
    return Deployment(
        title=title,
        engine=speaks.engine,
        engine_known=speaks.known,
        between=speaks.between,
        read=found.read(),
        servers=tuple(found.servers),
        proxies=tuple(found.proxies),
        clients=tuple(found.clients),
        boxes=tuple(found.boxes),
        launchers=tuple(found.launchers),
        batches=tuple(found.batches),
        programs=tuple(found.programs),
        exports=tuple(found.exports),
        faults=tuple(found.faults),
        model=model,
        weights=weights,
        hardware=hardware,
        devices_per_node=hardware.devices.count
        if hardware
        else inference.devices(
            [box for box in found.boxes if box.spot.file not in documents], found.batches
        ),
        unread=tuple(found.unread),
        documents=documents,
        ignores=ignores.merged(found.ignores),
        paths={
            **{text.name: text.path for text in texts if text.path},
            **{spot.file: spot.name for spot, _ in unread},
        },
    )


class _Assembler:
    """A reader of all sources: each is read once, a script that others call once for each call."""

    def __init__(self, engine: catalog.Engine, found: Found, sources: list[Source]) -> None:
        self.engine = engine
        self.found = found
        self.sources = sources
        self.by_name = {
            (source.folder, source.base): source for source in sources if not source.document
        }
        self.serving: dict[str, int] = {}
        self.launches: list[tuple[Source, Command, Launcher]] = []
        self.folders = {source.folder for source in sources}

    def _ignores(self, source: Source) -> None:
        if ignores.MARK in source.text:
            self.found.ignores += ignores.of_script(source.tree.root_node, source.file, source.line)

    def all(self) -> None:
        """Read every source."""
        scripts = []
        for source in list(self.sources):
            masked = fill_ins.masked(source.text)
            try:
                source.tree = tree(masked)
            except Unparsed as slow:
                self.found.unread.append((Spot(source.file, source.file, source.line), str(slow)))
                continue
            faults = list(
                quirks.find(source.text, source.tree, source.file, source.line, source.document)
            )
            self.found.faults += faults
            if any(
                fault.rule.startswith("shell/continuation-") and not fault.rule.endswith("-end")
                for fault in faults
            ):
                masked = quirks.mended(masked, faults, source.line)
                source.text, source.tree = masked, tree(masked)
            self._ignores(source)
            script = bash.interpret(
                masked, source.file, source.line, root=source.tree, included=self._included(source)
            )
            scripts.append((source, script))
            for line, why in script.unread:
                if why:
                    self.found.unread.append((Spot(source.file, source.file, line), why))
            if not source.document:
                self.found.unread += [
                    (
                        Spot(source.file, source.file, line + source.line),
                        f"the grammar stops at: {said}",
                    )
                    for line, said in quirks.unreadable(source.tree.root_node)
                ][:3]
            for name, (text, line) in script.written.items():
                if "vllm" in text:
                    inner = Source(source.file, source.folder, text, line, source.document)
                    try:
                        inner.tree = tree(fill_ins.masked(text))
                    except Unparsed as slow:
                        self.found.unread.append((Spot(source.file, source.file, line), str(slow)))
                        continue
                    self._ignores(inner)
                    scripts.append(
                        (
                            inner,
                            bash.interpret(
                                fill_ins.masked(text), source.file, line, root=inner.tree
                            ),
                        )
                    )
                    self.by_name.setdefault((source.folder, os.path.basename(name)), inner)
        for source, script in scripts:
            source.includes = bool(script.sources)
            self._calls(source, script)
            if any(commands.serve_at(command.argv) is not None for command in script.commands):
                self.serving[source.folder] = self.serving.get(source.folder, 0) + 1
        self._launched(scripts)
        for source, script in scripts:
            if source.calls:
                for arguments, env, node in source.calls[:_MOST_CALLS]:
                    again = bash.interpret(
                        fill_ins.masked(source.text),
                        source.file,
                        source.line,
                        arguments,
                        env,
                        source.tree,
                        included=self._included(source),
                    )
                    self._commands(source, again, node)
            else:
                self._commands(source, script, "")
            unset_variables.variables(source, script, self.found)
            unset_variables.job(source, script, self.found)

    def _calls(self, source: Source, script: Script) -> None:
        """Record which of these scripts a script starts, and with which arguments and variables."""
        for command in script.commands:
            argv = command.argv
            at = commands.program_at(argv, commands.LAUNCHER)
            if at is not None:
                spot = Spot(f"{source.file}:{command.line}", source.file, command.line)
                made = commands.launcher(argv, spot, self._node(source))
                many = (
                    sum(
                        1
                        for one in script.commands
                        if commands.program_at(one.argv, commands.LAUNCHER) is not None
                    )
                    > 1
                )
                if many:
                    made = replace(made, node=f"{source.file}:{command.line}")
                self.found.launchers.append(made)
                self.launches.append((source, command, made))
                continue
            for index, word in enumerate(argv[:4]):
                name = os.path.basename(word)
                target = self.by_name.get((source.folder, name))
                if (
                    target is not None
                    and target is not source
                    and name.endswith(".sh")
                    and (
                        index == 0
                        or argv[index - 1]
                        in ("bash", "sh", "-x", "-e", "exec", "nohup", "source", ".", "srun")
                    )
                ):
                    rest = argv[index + 1 :]
                    if rest or command.env:
                        clean = {key: text for key, text in command.env.items() if "${" not in text}
                        target.calls.append((rest, clean, ""))
                    break

    def _launched(self, scripts: Sequence[tuple[Source, Script]]) -> None:
        """Call the template of each launch line, or assume its engines if there is none."""
        templates: dict[tuple[str, bool, str], list[tuple[Source, str]]] = {}
        for source, script in scripts:
            if any(_takes_arguments(command) for command in script.commands):
                said = source.label if source.document else source.base
                beside = templates.setdefault(_home(source), [])
                if all(one is not source for one, _ in beside):
                    beside.append((source, said))
        calls: dict[tuple[str, bool, str], list[tuple[layouts.Call, Mapping[str, str]]]] = {}
        for source, command, made in self.launches:
            above = source.text.split("\n")[: max(command.line - source.line, 0)]
            comment = above[-1].strip() if above and above[-1].strip().startswith("#") else ""
            said = comment or source.label or source.file
            calls.setdefault(_home(source), []).append((layouts.Call(made, said), command.env))
        for home, group in calls.items():
            envs = {id(call): env for call, env in group}
            there = templates.get(home, [])
            named = [one for one in there if one[0].base == _TEMPLATE and not one[0].document]
            found = layouts.pairs([call for call, _ in group], named or there)
            for template, call in found:
                for words in layouts.arguments(call.made, _MOST_CALLS):
                    template.calls.append((words, envs[id(call)], call.made.node))
            if not found:
                for call, _ in group:
                    self._assumed(call)

    def _assumed(self, call: layouts.Call) -> None:
        """Add the engines of a launch line of which nothing but the line is known."""
        made = call.made
        for words, env in layouts.bare(made, _MOST_CALLS):
            one = engine_view.of(
                self.engine,
                words,
                env,
                made.spot,
                made.node,
                certain=False,
                role=layouts.label(call.says)[0],
            )
            spot = Spot(f"{made.node} rank {one.rank}", made.spot.file, made.spot.line)
            self.found.servers.append(replace(one, spot=spot, assumed=True))

    def _included(self, source: Source) -> Callable[[str], str | None]:
        """Return a function that gives the text of a file that a script sources.

        Such a file is looked up by its own name, in the folder of the script.
        """

        def text(name: str) -> str | None:
            found = self.by_name.get((source.folder, os.path.basename(name)))
            return (
                fill_ins.masked(found.text) if found is not None and found is not source else None
            )

        return text

    def _node(self, source: Source) -> str:
        """Return the node of a script: its folder if each folder is a node, else the file."""
        alone = self.serving.get(source.folder, 0) <= 1
        if source.folder and len(self.folders) > 1 and alone:
            return source.folder
        return source.file if not source.document else f"{source.file}:{source.line}"

    # Commands ---------------------------------------------------------------------------

    def _commands(self, source: Source, script: Script, node: str, depth: int = 0) -> None:
        count = sum(1 for command in script.commands if commands.serve_at(command.argv) is not None)
        over = False
        for command in script.commands:
            # What starts after a kill or a wait may run without what was started before.
            over = (
                over
                or os.path.basename(command.argv[0]) in _ENDS
                or (
                    command.argv[:1] in (("docker",), ("podman",))
                    and command.argv[1:2] in (("rm",), ("stop",), ("kill",))
                )
            )
            certain = command.certain and not over and not source.document
            self._one(source, replace(command, certain=certain), node, count <= 1, depth)

    def _one(self, source: Source, command: Command, node: str, alone: bool, depth: int) -> None:
        argv = command.argv
        spot = Spot(f"{source.file}:{command.line}", source.file, command.line)
        home = _remote(argv) or node or self._node(source)
        node = _remote(argv) or node
        at = container_start.container_at(argv)
        if at is not None:
            self._docker(source, command, spot, home, at, alone, depth)
        elif depth < 4 and (run := container_start.image_run(argv)) is not None:
            self._in_image(source, command, run, node, alone, depth)
            return
        elif (inner := _inner(command)) is not None and depth < 4:
            text, line = inner
            script = bash.interpret(
                fill_ins.masked(text),
                source.file,
                line,
                None,
                command.env,
                env_lines=command.env_lines,
            )
            sub = [replace(one, certain=one.certain and command.certain) for one in script.commands]
            for one in sub:
                self._one(source, one, node, alone, depth + 1)
            return
        elif (start := commands.serve_at(argv)) is not None:
            if len(self.found.servers) >= _MOST_ENGINES or len(argv) > 4000:
                self.found.unread.append(
                    (spot, f"more than {_MOST_ENGINES} engines or 4000 words: not read")
                )
            elif "--omni" in argv:
                self.found.unread.append((spot, "vllm-omni has flags of its own"))
            elif "--help" not in argv and "-h" not in argv[start:]:
                before = command.words[:start]
                env, lines = dict(command.env), dict(command.env_lines)
                for word in before:  # env A=1, docker exec -e A=1
                    if match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", word.text, re.DOTALL):
                        env[match[1]], lines[match[1]] = match[2], word.line
                self._server(
                    source,
                    command.words,
                    start,
                    env,
                    lines,
                    spot,
                    _step_node(before) or home,
                    command.certain and (alone or command.background),
                )
        elif (start := commands.module_at(argv, "dynamo.vllm")) is not None:
            # Dynamo has flags of its own beside the engine's: only its place is judged.
            places = tuple(word.line for word in command.words[start:])
            made = engine_view.of(
                self.engine, argv[start:], command.env, spot, home, 0, places, command.certain
            )
            self.found.servers.append(replace(made, http_port=None, headless=True, assumed=True))
        elif commands.is_proxy(argv):
            self.found.proxies.append(commands.proxy(argv, spot, ""))
        elif (client := clients.client(self.engine, argv, spot)) is not None:
            self.found.clients.append(client)
        elif commands.program_at(argv, commands.LAUNCHER) is None:
            self.found.programs.append(Program(spot, argv, {}))
            if commands.is_strange(argv):
                self.found.strange.append((spot, argv[0]))
            return
        unset_variables.words(source, command, self.found)

    def _server(
        self,
        source: Source,
        words: Sequence[Word],
        start: int,
        env: Mapping[str, str],
        env_lines: Mapping[str, int],
        spot: Spot,
        node: str,
        certain: bool,
    ) -> None:
        argv = tuple(word.text for word in words)
        lines = tuple(word.line for word in words)
        made = engine_view.of(
            self.engine, argv, env, spot, node, start, lines, certain, env_lines=env_lines
        )
        if source.calls and made.single and made.rank is not None:
            named = Spot(f"{node} rank {made.rank}", spot.file, spot.line)
            made = replace(made, spot=named)
        self.found.servers.append(made)

    def _docker(
        self,
        source: Source,
        command: Command,
        spot: Spot,
        home: str,
        at: int,
        alone: bool,
        depth: int,
    ) -> None:
        box = container_start.box(command.argv, command.env, spot, home, at)
        if container_start.runs_a_tool(box):
            return
        if not box.host_network:
            # A network, and so ports, of its own; each turn of a loop starts another.
            home = f"{spot.name} ({len(self.found.boxes) + 1})"
            box = replace(box, node=home)
        self.found.boxes.append(box)
        if not box.argv:
            return
        entry = box.options.get("--entrypoint", ())[-1:]
        words = (
            *(Word(text, command.line) for text in entry),
            *command.words[len(command.words) - len(box.argv) :],
        )
        lines = dict.fromkeys(box.env, command.line)
        inside = replace(command, words=words, env=box.env, env_lines=lines)
        before = len(self.found.servers)
        self._inside(source, inside, box, spot, home, alone, depth)
        self._sees(box, before)

    def _in_image(
        self,
        source: Source,
        command: Command,
        run: tuple[int, str, dict[str, str], bool],
        node: str,
        alone: bool,
        depth: int,
    ) -> None:
        """Read what apptainer or enroot runs inside an image: on the network of the host."""
        at, image, env, own = run
        words = command.words[at:]
        argv = tuple(word.text for word in words)
        if own and container_start.serves_by_itself(image) and not container_start.serves(argv):
            words = (Word("vllm", command.line), Word("serve", command.line), *words)
        if words:
            lines = {**command.env_lines, **dict.fromkeys(env, command.line)}
            inside = replace(command, words=words, env={**command.env, **env}, env_lines=lines)
            self._one(source, inside, node, alone, depth + 1)

    def _inside(
        self,
        source: Source,
        command: Command,
        box: Box,
        spot: Spot,
        home: str,
        alone: bool,
        depth: int,
    ) -> None:
        """Read what runs inside a container."""
        if _inner(command) is not None or commands.serve_at(command.argv) is not None:
            self._one(source, replace(command, unset=()), home, alone, depth + 1)
        elif box.runs_engine:
            entry = " ".join(box.options.get("--entrypoint", ()))
            if entry and "vllm" not in entry:
                return
            unset_variables.words(source, replace(command, unset=()), self.found)
            words = [Word("vllm", command.line), Word("serve", command.line), *command.words]
            self._server(
                source, words, 2, box.env, command.env_lines, spot, home, command.certain and alone
            )

    def container(self, one: compose.Container, source: Source) -> None:
        """Read a container of a compose or Kubernetes file."""
        shift = source.line - 1
        line = one.line + shift
        spot = Spot(f"{source.file}:{line}", source.file, line)
        # Fences of a document are alternatives, each on a node of its own.
        host = source.file if source.line == 1 else f"{source.file}:{source.line}"
        node = host if one.host_network else f"{spot.name} ({one.name})"
        argv = tuple(word for word, _ in (*one.entrypoint, *one.command))
        options = {
            name: values
            for name, values in (
                ("--privileged", ("true",) if one.privileged else ()),
                ("--network", ("host",) if one.host_network else ()),
                ("--env-file", tuple(one.env_files)),
                ("--memory", (one.memory,) if one.memory else ()),
                ("--entrypoint", tuple(word for word, _ in one.entrypoint)),
            )
            if values
        }
        runs = container_start.serves(argv) or (
            not one.entrypoint
            and bool(argv)
            and (
                container_start.serves_by_itself(one.image) or container_start.serves_by_words(argv)
            )
        )
        env_lines = {name: at + shift for name, at in one.env_lines.items()}
        devices = (*container_start.accelerators(one.devices), *container_start.gpus(one.gpus))
        box = Box(
            spot,
            node,
            one.image,
            one.name,
            argv,
            tuple(one.mounts),
            devices,
            () if one.host_network else tuple(one.ports),
            one.env,
            options,
            runs,
            tuple(one.passes),
        )
        self.found.boxes.append(box)
        words = tuple(Word(word, at + shift) for word, at in (*one.entrypoint, *one.command))
        if words:
            before = len(self.found.servers)
            command = Command(words, one.env, env_lines, line, one.certain, True)
            self._inside(source, command, box, spot, box.node, True, 0)
            self._sees(box, before)

    def _sees(self, box: Box, before: int) -> None:
        """Set the devices of the engines inside a container to those that it gets.

        They are counted as on the node. ``before`` is the number of engines found before the
        container.
        """
        numbers = container_start.device_numbers(box.devices)
        for index, one in enumerate(self.found.servers[before:], start=before):
            ray = "ray" in (
                one.text("distributed-executor-backend"),
                one.text("data-parallel-backend"),
            )
            if numbers is None or ray:  # ray may place ranks on other nodes
                continue
            inside = one.devices
            if inside is None and not any(
                re.fullmatch("(CUDA|ASCEND_RT|HIP|ROCR)_VISIBLE_DEVICES", name) for name in one.env
            ):
                inside = tuple(range(len(numbers)))
            if inside is not None and all(device < len(numbers) for device in inside):
                self.found.servers[index] = replace(
                    one, devices=tuple(numbers[device] for device in inside)
                )


def _home(source: Source) -> tuple[str, bool, str]:
    """Return what is equal for the sources among which a launcher finds its template."""
    return source.folder, source.document, source.file if source.document else ""


def _takes_arguments(command: Command) -> bool:
    """Return whether an engine is started with words that a launcher hands in ($1 to $7)."""
    return commands.serve_at(command.argv) is not None and any(
        re.fullmatch(r"\$\{[1-9]\}", word.text) for word in command.words
    )


def _remote(argv: Sequence[str]) -> str:
    """Return the host on which ssh runs the rest of a command, "" for other commands."""
    if not argv or os.path.basename(argv[0]) != "ssh":
        return ""
    rest = list(argv[1:])
    while rest and rest[0].startswith("-"):
        del rest[: 2 if rest[0][1:2] in _SSH_VALUES and len(rest[0]) == 2 else 1]
    return rest[0] if len(rest) > 1 and "$" not in rest[0] else ""


def _step_node(words: Sequence[Word]) -> str:
    """Return the node on which ``srun -w NODE`` puts a step, "" if it names none."""
    texts = [word.text for word in words]
    if not any(os.path.basename(text) == "srun" for text in texts):
        return ""
    for index, text in enumerate(texts):
        if text in ("-w", "--nodelist") and index + 1 < len(texts):
            return texts[index + 1]
        if text.startswith("--nodelist="):
            return text.partition("=")[2]
    return ""


def _inner(command: Command) -> tuple[str, int] | None:
    """Return the script that a command runs, and its line; return None for other commands.

    It is the script of ``bash -c SCRIPT``, or the one that ssh, tmux, sbatch and the like take as
    one word.
    """
    words = command.words
    for index, word in enumerate(words[:-1]):
        name = os.path.basename(word.text)
        if (
            name in ("bash", "sh")
            and re.fullmatch(r"-[a-z]*c", words[index + 1].text)
            and index + 2 < len(words)
        ):
            return words[index + 2].text, words[index + 2].line
    if words and os.path.basename(words[0].text) in _CARRIERS:
        for word in reversed(words[1:]):
            text = word.text.removeprefix("--wrap=")
            if "vllm" in text and " " in text:
                return text, word.line
    return None
