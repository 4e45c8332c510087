"""Rules on what clients send and import: JSON, fields, keys of templates, programs of Python."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

from kimi_nb import catalog
from kimi_nb.catalog import fill_ins
from kimi_nb.check.findings import WARNING
from kimi_nb.check.rules.json_flags import why_not_json
from kimi_nb.check.rules.registry import Problem, of_reading, rule
from kimi_nb.check.view.deployment import Client, Deployment
from kimi_nb.check.view.engine_view import Spot
from kimi_nb.core import data_files


@rule(
    "client/moved-name",
    WARNING,
    "A name is imported from the module of vLLM that holds it.",
    "Import it from the module that is named.",
    "vLLM pull requests 27143 and its like (October 2025): vllm.utils became a folder of modules",
)
def moved_name(d: Deployment) -> Iterator[Problem]:
    """ImportError: cannot import name ... from 'vllm.utils'; the example ends in its first lines."""
    stated = d.engine_stated
    if re.match(r"\d", stated) and catalog.earlier(stated, "0.11.2"):
        return
    homes = data_files.facts("catalog/source_files")["utils"]
    moved = {name: home for home, names in homes.items() for name in names}
    for one in d.programs:
        if one.argv[:3] == ("from", "vllm.utils", "import") and one.argv[3] in moved:
            name = one.argv[3]
            yield Problem(
                one.spot,
                f"vllm.utils has no {name} since 0.11.2: {moved[name]} has it",
                f"Write from {moved[name]} import {name}.",
            )


_ONLY_READ = ("/v1/models", "/health", "/metrics", "/version")


@rule(
    "client/method",
    WARNING,
    "What is only read is asked for by GET.",
    "Take -X POST out.",
    "vllm/entrypoints/openai/api_server.py: these paths have GET alone",
)
def method(d: Deployment) -> Iterator[Problem]:
    """405 Method Not Allowed, also while the engine serves."""
    for one in d.clients:
        given = dict(itertools.pairwise(one.argv))
        verb = given.get("-X") or given.get("--request") or ("POST" if _body(one) else "GET")
        if "-XPOST" in one.argv:
            verb = "POST"
        if one.kind == "curl" and verb == "POST" and one.path.rstrip("/") in _ONLY_READ:
            yield Problem(one.spot, f"curl sends POST to {one.path}")


# What the openai package takes out of a call and puts beside the other fields.
_PYTHON_ONLY = ("extra_body", "extra_headers", "extra_query")


@rule(
    "client/request-field",
    WARNING,
    "A request has its fields where the server reads them.",
    "Put the fields of extra_body beside model and messages.",
    "openai-python: extra_body is an argument of its calls, whose fields are added to the request",
)
def request_field(d: Deployment) -> Iterator[Problem]:
    """The server leaves a field that it does not know aside, with all that stands in it."""
    for one in d.clients:
        body = _body(one) if one.kind == "curl" else ""
        for name in _PYTHON_ONLY:
            if (
                re.search(rf'"{name}"\s*:', body)
                and one.path.startswith("/v1/")
                and (name != "extra_body" or _FIELDS.search(body))
            ):
                yield Problem(
                    one.spot, f"{name} is an argument of Python, and no field of a request"
                )


# Fields of vLLM's own; vllm-omni reads extra_body itself, with fields of pictures in it.
_FIELDS = re.compile(
    r'"(chat_template_kwargs|thinking_token_budget|top_k|min_p|repetition_penalty|guided_\w+|'
    r'structured_outputs|stop_token_ids|mm_processor_kwargs|include_reasoning|ignore_eos)"'
)
_THINKS = ("enable_thinking", "thinking", "reasoning", "enable_reasoning", "think")


@rule(
    "client/template-key",
    WARNING,
    "A chat template is given the key that it reads.",
    "Write the key that is named.",
    "chat_template.jinja of Qwen3, GLM-4.5, DeepSeek-V3.1 and Kimi-K2.5 (kimi_nb/data/catalog/versions.yaml)",
)
def template_key(d: Deployment) -> Iterator[Problem]:
    """A template leaves a key that it does not know aside: the model goes on thinking."""
    families = data_files.facts("catalog/versions")["template_keys"]
    models = {one.model for one in d.servers if one.model and not fill_ins.holds(one.model)}
    reads = {
        next((key for name, key in families.items() if re.search(name, model)), "")
        for model in models
    }
    if len(reads) != 1 or "" in reads:
        return
    (right,) = reads
    given: list[tuple[Spot, str]] = [
        (server.of("default-chat-template-kwargs"), str(name))
        for server in (*d.options(), *d.prose)
        for name in server.table("default-chat-template-kwargs")
    ]
    for one in d.clients:
        match = re.search(r'"chat_template_kwargs"\s*:\s*\{([^{}]*)\}', _body(one))
        names = re.findall(r'"(\w+)"\s*:', match[1]) if match else ()
        given += [(one.spot, name) for name in names]
    for spot, name in given:
        if name in _THINKS and name != right:
            yield Problem(
                spot, f"the template reads {right}, and is given {name}", f"Write {right}."
            )


_DATA = ("-d", "--data", "--data-raw", "--data-binary", "--json")


def _body(client: Client) -> str:
    """Return what a call of curl sends, "" if it sends nothing that is written there."""
    for before, word in itertools.pairwise(client.argv):
        name, equals, value = word.partition("=")
        if before in _DATA:
            return word
        if equals and name in _DATA[1:]:
            return value
    return ""


@rule(
    "client/body",
    WARNING,
    "What curl sends to the API is JSON.",
    "Check quotes, commas and brackets.",
    "json.loads, by which the server reads a request",
)
def body(d: Deployment) -> Iterator[Problem]:
    """422 or 400, 'JSON decode error': the model is never asked."""
    for one in d.clients:
        text = _body(one) if one.kind == "curl" and one.path.startswith("/v1/") else ""
        if not text.lstrip().startswith("{") or _open(text):
            continue
        try:
            json.loads(text)
        except ValueError:
            what, fix = why_not_json(text)
            yield Problem(one.spot, f"what curl sends is no JSON: {what}", fix)


def _open(text: str) -> bool:
    """Return whether something in a body is left to the reader, or put in by the shell."""
    return (
        re.search(r"\.\.\.|\N{HORIZONTAL ELLIPSIS}|[$`<>{}]\{|\$|<[A-Za-z]", text) is not None
        or fill_ins.MARK[0] in text
    )


rule(
    "client/python-syntax",
    WARNING,
    "A block of Python that is a whole program is one that Python takes.",
    "Look for a bracket or a quote that is not closed, or a colon for an equals sign, at this line "
    "or above.",
    "the grammar of Python 3.11",
    needs=("scripts",),
)(
    of_reading(
        "client/python-syntax",
        "SyntaxError: nothing of the example runs.",
        __name__,
    )
)
