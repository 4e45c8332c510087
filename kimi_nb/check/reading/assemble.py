"""Build a deployment from texts: which engine starts on which node, and with which words.

>>> from kimi_nb.check.reading import assemble
>>> from kimi_nb.check.reading.files import Text
>>> text = Text("run.sh", "", "bash", "vllm serve m --port 8001")
>>> assemble.of_texts([text], "vllm", "0.19.1").servers[0].http_port
8001
"""

from __future__ import annotations

import contextlib
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
    fragments,
    ignores,
    inference,
    layouts,
    markdown,
    missing_files,
    printed,
    quirks,
    store_files,
    unset_variables,
)
from kimi_nb.check.reading.script import Command, Script, Word
from kimi_nb.check.reading.sources import Found, Source, Words, of_yaml, sources
from kimi_nb.check.reading.syntax import Unparsed, tree
from kimi_nb.check.rules import variables
from kimi_nb.check.view import clients, commands, container_start, engine_view
from kimi_nb.check.view.deployment import Box, Deployment, Launcher, Program
from kimi_nb.check.view.engine_view import EngineView, Spot
from kimi_nb.params import schema

_MOST_CALLS = 64
_TEMPLATE = "run_dp_template.sh"  # what launch_online_dp.py runs
# Programs that take a script as one word and run it elsewhere.
_CARRIERS = ("ssh", "tmux", "screen", "pdsh", "setsid", "sbatch", "parallel-ssh", "pssh", "clush")
_COMMAND = re.compile(r"(\w+=\S+ +)*vllm serve +\S")
_SSH_VALUES = set("BbcDEeFIiJLlmOoPpQRSWw")
_SGLANG = "SGLang is not judged: the rules are of vLLM"
_MOST_ENGINES = 1024  # of all files, beyond which nobody reads findings
_STARTS = re.compile(r"\bvllm serve [\w$\"'{/<-]")
_MENTIONS = re.compile(
    r"^\s*(#|//)|\b(pkill|pgrep|grep|echo|printf|kill|description|sed)\b|`vllm serve|--help"
)
_CONTINUES = {f"shell/continuation-{end}" for end in ("lost", "comment", "spaced", "glued", "end")}
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
    return of_texts(texts, engine, version, hardware, unread, tree=files.tree(paths))


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
    there = files.tree(paths)
    first = of_texts(texts, engine, version, hardware, unread, tree=there)
    return [
        first,
        *(
            of_texts(
                texts,
                engine,
                "",
                hardware,
                unread,
                inference.Spoken(other, True, stated=first.engine_stated),
                there,
            )
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
    tree: frozenset[str] | None = None,
) -> Deployment:
    """Build the deployment of texts that are already read.

    ``unread`` is what was not read of the files (its spots are named by their paths), and why;
    ``speaks`` is the engine if it is known, and ``tree`` all files of the folder that they are in,
    None if they are no whole folder.
    """
    told = speaks is not None
    speaks = speaks or inference.engine(texts, engine, version)
    found = Found(unread=list(unread), faults=list(speaks.faults))
    shells, boxes = sources(texts, found)
    reader = _Assembler(speaks.engine, found, shells)
    for container, source in boxes:
        reader.container(container, source)
    reader.all()
    found.unread += [(box.spot, _SGLANG) for box in found.boxes if commands.is_sglang(box.argv)]
    if not told and not speaks.known and not speaks.faults and not version:
        again = inference.from_images(found.boxes, engine)
        if again is not None:  # the image's name came together from variables
            return of_texts(texts, engine, version, hardware, unread, again, tree)
    found.strange += [spot for text in texts for spot in _silent(text, found)]
    services = {text.name for text in texts if text.kind == "yaml"}
    found.servers = _alternatives(found.servers, services)
    if tree is not None:
        found.faults += missing_files.find(texts, found.programs, tree)
    model, weights = inference.model(found.servers)
    # A document shows containers of several kinds of node.
    documents = frozenset(
        {text.name for text in texts if text.kind == "markdown"}
        | {source.file for source in shells if source.document}
    )
    prose, wrong = fragments.prose(speaks.engine, found.spans)
    found.faults += wrong
    title = texts[0].name if len(texts) == 1 else f"{len(texts)} files"
    return Deployment(
        title=title,
        engine=speaks.engine,
        engine_known=speaks.known,
        between=speaks.between,
        outside=speaks.outside,
        engine_stated=speaks.stated,
        read=found.read(),
        servers=tuple(found.servers),
        fragments=tuple(fragments.engines(speaks.engine, found.loose)),
        prose=tuple(prose),
        proxies=tuple(found.proxies),
        clients=tuple(found.clients),
        boxes=tuple(found.boxes),
        launchers=tuple(found.launchers),
        batches=tuple(found.batches),
        programs=tuple(found.programs),
        exports=tuple(found.exports),
        metrics=tuple(found.metrics),
        stores=tuple(found.stores),
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
                quirks.find(
                    fill_ins.untagged(source.text),
                    source.tree,
                    source.file,
                    source.line,
                    source.document,
                )
            )
            self.found.faults += faults
            if quirks.breaks(faults):
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
                self.found.stores += store_files.of(text, source.file, line)
                inner = self._written(source, text, line)
                if inner is not None:
                    scripts.append(inner)
                    self.by_name.setdefault((source.folder, os.path.basename(name)), inner[0])
            for text, line in script.manifests:
                made = of_yaml(text, source.file, source.folder, line, True, self.found)
                for container, place in made[1]:
                    self.container(container, place)
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
            unset_variables.letters(source, script, self.found)
            self.found.loose += printed.words(source, script)

        unset_variables.alike(scripts, self.found)
        unset_variables.unexported(scripts, self.found)

    def _written(self, source: Source, text: str, line: int) -> tuple[Source, Script] | None:
        """Read a script that another one writes to a file; None for what names no engine."""
        if "vllm" not in text:
            return None
        inner = Source(source.file, source.folder, text, line, source.document)
        masked = fill_ins.masked(text)
        try:
            inner.tree = tree(masked)
        except Unparsed as slow:
            self.found.unread.append((Spot(source.file, source.file, line), str(slow)))
            return None
        faults = list(quirks.find(text, inner.tree, inner.file, line, True))
        self.found.faults += faults
        if quirks.breaks(faults):
            masked = quirks.mended(masked, faults, line)
            inner.text, inner.tree = masked, tree(masked)
        self._ignores(inner)
        return inner, bash.interpret(masked, source.file, line, root=inner.tree)

    def _quirks(self, source: Source, text: str, line: int) -> None:
        """Find what is wrong in a script that a container runs."""
        with contextlib.suppress(Unparsed):
            found = quirks.find(text, tree(fill_ins.masked(text)), source.file, line, True)
            self.found.faults += [one for one in found if one.rule in _CONTINUES]

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
            over = over or _ends(command.argv)
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
            if not source.text and "vllm" in text and "\n" in text.strip():
                self._quirks(source, text, line)  # a script that YAML holds
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
            elif (
                not any(re.match("--help(=|$)", word) for word in argv) and "-h" not in argv[start:]
            ):
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
            # Dynamo has flags of its own beside the engine's: those alone are judged by the engine.
            places = tuple(word.line for word in command.words[start:])
            words = [(word.text, word.line) for word in command.words[start:]]
            if kept := fragments.of_engine(words):
                self.found.loose.append(Words(source.file, kept, True))
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
            for name in command.own:
                # Other programs read variables of their own: only a slip in a known name is told.
                slip = variables.near(name) and not name.startswith("VLLM_")
                if slip or name in catalog.ever_read():
                    given = {name: command.env[name]}
                    self.found.exports.append(Program(spot, ("env", name), given))
            if commands.is_sglang(argv):
                self.found.unread.append((spot, _SGLANG))
            elif commands.is_strange(argv):
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
        if any(re.match("--help(=|$)", word) for word in argv[start:]):
            return  # it prints, and ends
        lines = tuple(word.line for word in words)
        made = engine_view.of(
            self.engine, argv, env, spot, node, start, lines, certain, env_lines=env_lines
        )
        filled = frozenset(index for index, word in enumerate(words) if "$" in word.raw)
        made = replace(made, filled=filled)
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
            one.kubernetes and not one.env_files,
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


def _silent(text: files.Text, found: Found) -> list[tuple[Spot, str]]:
    """Return the first line that starts an engine in a file of which nothing was read."""
    taken = [one.spot for one in found.servers] + [one.spot for one in found.boxes]
    taken += [spot for spot, _ in (*found.unread, *found.strange)]
    if "vllm serve " not in text.text or any(spot.file == text.name for spot in taken):
        return []
    pieces = (
        [(fence.line, fence.text) for fence in markdown.fences(text.text)]
        if text.kind == "markdown"
        else [(1, text.text)]
    )
    for first, piece in pieces:
        for number, line in enumerate(piece.split("\n"), start=first):
            if _STARTS.search(line) and not _MENTIONS.search(line):
                return [(Spot(f"{text.name}:{number}", text.name, number), "vllm serve")]
    return []


def _alternatives(servers: list[EngineView], files: set[str]) -> list[EngineView]:
    """Mark the engines of a compose file that cannot run together as ones of which a user takes one.

    They serve different models at one port of one host: ``docker compose up NAME`` starts one.
    """
    models: dict[tuple[str, int], set[str]] = {}
    for one in servers:
        if one.spot.file in files and one.node == one.spot.file and one.http_port is not None:
            models.setdefault((one.node, one.http_port), set()).add(one.model)
    # The others of the file are chosen from as well.
    some = {node for (node, _), names in models.items() if len(names) > 1}
    return [replace(one, certain=False) if one.node in some else one for one in servers]


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
    """Return the node on which srun puts a step (-w NODE, --relative=N), "" if it names none."""
    texts = [word.text for word in words]
    if not any(os.path.basename(text) == "srun" for text in texts):
        return ""
    for index, text in enumerate(texts):
        if text in ("-w", "--nodelist") and index + 1 < len(texts):
            return texts[index + 1]
        if text.startswith("--nodelist="):
            return text.partition("=")[2]
        if text.startswith("--relative="):  # the node of the job with this number
            return f"node {text.partition('=')[2]}"
    return ""


def _ends(argv: Sequence[str]) -> bool:
    """Return whether a command ends what was started before, or waits for its end."""
    name = os.path.basename(argv[0])
    if name in ("xargs", "sudo", "timeout"):  # pgrep python3 | xargs -r kill -9
        return any(os.path.basename(word) in _ENDS[:3] for word in argv[1:])
    if name in ("docker", "podman"):
        return argv[1:2] in (("rm",), ("stop",), ("kill",))
    return name in _ENDS


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
            rest = [word for word in words[index + 2 : index + 4] if word.text != "--"]
            return (rest[0].text, rest[0].line) if rest else None
    if words and os.path.basename(words[0].text) in ("bash", "sh", "source", "."):
        # A script that is handed the command as a word of its own.
        for word in words[2:]:
            if _COMMAND.match(word.text):
                return word.text, word.line
    if words and os.path.basename(words[0].text) in _CARRIERS:
        for word in reversed(words[1:]):
            text = word.text.removeprefix("--wrap=")
            if "vllm" in text and " " in text:
                return text, word.line
    return None
