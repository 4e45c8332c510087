"""Rules on what an engine is given in another spelling: shortened flags, chat templates."""

from __future__ import annotations

import difflib
import os.path
import re
from collections.abc import Iterator

from kimi_nb.catalog import arguments, fill_ins
from kimi_nb.check.findings import NOTE, WARNING
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.core import data_files


@rule(
    "engine/flag-shortened",
    NOTE,
    "A flag is written in full.",
    "Write the flag in full.",
    "argparse takes the beginning of a flag for it, as long as no other flag begins so",
)
def flag_shortened(d: Deployment) -> Iterator[Problem]:
    """A later version adds a flag that begins the same: 'ambiguous option', and nothing starts."""
    for server in d.options():
        for given in server.given:
            name = given.spelt.lstrip("-").partition("=")[0].partition(".")[0].replace("_", "-")
            if (
                given.spelt.startswith("--")
                and given.fault not in (arguments.UNKNOWN, arguments.AMBIGUOUS)
                and len(name) < len(given.name)
                and given.name.startswith(name)
                and not fill_ins.holds(given.spelt)
            ):
                yield Problem(server.at(given.index), f"{given.spelt} is taken for --{given.name}")


@rule(
    "engine/chat-template",
    WARNING,
    "A chat template of vLLM's examples is one that they hold.",
    "Write the name of a file in examples/ of the engine's source.",
    "examples/*.jinja in the history of vLLM's repository",
)
def chat_template(d: Deployment) -> Iterator[Problem]:
    """'The supplied chat template looks like a file path, but doesn't exist': the engine ends."""
    known = data_files.facts("catalog/versions")["chat_templates"]
    for server in (*d.options(), *d.prose):
        for given in server.given:
            if given.name != "chat-template" or given.text is None:
                continue
            folder, name = os.path.split(given.text)
            match = re.fullmatch(r"tool_chat_template_([\w.]+)\.jinja", name)
            if match and os.path.basename(folder) == "examples" and match[1] not in known:
                near = difflib.get_close_matches(match[1], known, n=1, cutoff=0.6)
                yield Problem(
                    server.at(given.index),
                    f"vLLM's examples have no {name}",
                    f"Did you mean tool_chat_template_{near[0]}.jinja?" if near else "",
                )
        for index, word in server.stray if server in d.prose else ():
            if re.fullmatch(r"[\w./-]+\.jinja", word):
                yield Problem(
                    server.at(index),
                    f"{word[:60]} belongs to no flag",
                    f"Write --chat-template {word[:60]}.",
                )


# As models on the hub are called: Family-8B-Instruct.
_HUB = re.compile(r"[A-Z][A-Za-z0-9.]+(-[\w.]+)*-\d+(\.\d+)?[BM](-[\w.]+)*")


@rule(
    "engine/model-twice",
    WARNING,
    "The model is named once.",
    "Write vllm serve MODEL, and give another name by --served-model-name.",
    "vllm/entrypoints/cli/serve.py: the positional model takes the place of --model",
)
def model_twice(d: Deployment) -> Iterator[Problem]:
    """--model is left aside: other weights are loaded than it names, or downloaded."""
    for server in d.servers:
        other = server.text("model") or ""
        named = server.positional and other and not fill_ins.holds(other + server.model)
        if named and other != server.model:
            yield Problem(server.of("model"), f"--model {other[:60]} beside {server.model[:60]}")


@rule(
    "engine/model-slash",
    WARNING,
    "The name of a model on the hub has one slash, in the middle.",
    "Take the slash at the end away.",
    "huggingface_hub: a repository is called OWNER/MODEL",
)
def model_slash(d: Deployment) -> Iterator[Problem]:
    """'Repo id must be in the form repo_name or namespace/repo_name', where no such folder is there."""
    for server in d.servers:
        if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*[A-Za-z\d]/", server.model) and d.plan is None:
            yield Problem(server.spot, f"{server.model} ends in a slash: no model has such a name")


_MAKERS = {"git", "hf", "huggingface-cli", "modelscope", "cp", "mv", "ln", "mkdir", "wget", "cd"}


@rule(
    "engine/model-owner",
    NOTE,
    "A model of the hub is named with its owner.",
    "Write OWNER/MODEL, or ./MODEL for a folder.",
    "Hugging Face Hub and ModelScope: OWNER/MODEL",
)
def model_owner(d: Deployment) -> Iterator[Problem]:
    """'Repository Not Found' where no folder of that name is beside the script."""
    if d.plan is not None:
        return
    made = {
        word.rstrip("/").rpartition("/")[2]
        for _, words in d.commands()
        if _MAKERS & {*words[:3]} or "--local-dir" in words
        for word in words
    }
    owned = [one.model for one in d.servers if re.fullmatch(r"[\w.-]+/[\w.-]+", one.model)]
    for server in d.servers:
        if _HUB.fullmatch(server.model) and server.model not in made:
            family = server.model.partition("-")[0]
            like = next((one for one in owned if one.partition("/")[2].startswith(family)), "")
            yield Problem(
                server.spot,
                f"{server.model} names a folder: it has no owner",
                f"Write {like.partition('/')[0]}/{server.model}, as beside it." if like else "",
                WARNING if like else "",
            )
