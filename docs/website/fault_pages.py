"""Write the pages of known failures: the doctor's signatures as an FAQ, and the errata."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kimi_nb.core import data_files
from kimi_nb.diagnose import signatures
from kimi_nb.diagnose.signatures import Signature
from kimi_nb.params import errata
from website.markup import block, code, prose, table, text, toctree

_PLACE = re.compile(r"\{\w+\}")
# Where the issues are that the signatures name by repository alone.
_OWNERS = {
    "vllm": "vllm-project",
    "vllm-ascend": "vllm-project",
    "recipes": "vllm-project",
    "llm-d": "llm-d",
    "Mooncake": "kvcache-ai",
    "nccl": "NVIDIA",
    "nixl": "ai-dynamo",
    "pytorch": "pytorch",
    "transformers": "huggingface",
}


def faq() -> dict[str, str]:
    """Return the pages of the FAQ by path: an overview, and one for each topic."""
    topics = {
        topic: [one for one in signatures.entries() if one.topic == topic]
        for topic in signatures.TOPICS
    }
    rows = [
        [f"[{signatures.TOPICS[topic]}]({topic}.md)", str(len(entries))]
        for topic, entries in topics.items()
    ]
    overview = (
        "# FAQ\n\nWhat goes wrong, why, and the way out: the signatures by which [the doctor]"
        "(../docs/doctor.md) knows a failure in logs. Search for a line of your log, in English or "
        "Chinese, or let `kimi-nb doctor LOGS` read all of them.\n\n"
        + table(("topic", "entries"), rows)
        + toctree("", topics)
    )
    pages = {f"faq/{topic}": _topic(topic, entries) for topic, entries in topics.items()}
    return {"faq/index": overview} | pages


def _topic(topic: str, entries: Iterable[Signature]) -> str:
    return f"# {signatures.TOPICS[topic]}\n\n" + "\n".join(map(_entry, entries))


def _entry(one: Signature) -> str:
    """Return the section of an entry; its heading is the cause, without what only a log can fill in."""
    cause = _PLACE.sub("…", one.cause).rstrip("… :")
    parts = [f"({text_id(one.id)})=\n## {text(cause[:1].upper() + cause[1:])}\n"]
    if one.question:
        parts.append(f"{text(one.question)}\n")
    parts += [block(example) for example in one.examples]
    parts.append(f"**The way out.** {prose(one.help)}\n")
    facts = {
        "platform": one.platform if one.platform != "any" else "",
        "versions": one.versions,
        "known as": ", ".join(map(_issue, one.refs)),
        "notebook": _notebook(one.see),
        "also searched for": text(", ".join(one.words)),
        "id": code(one.id),
    }
    parts.append("".join(f"- {name}: {value}\n" for name, value in facts.items() if value))
    return "\n".join(parts)


def text_id(name: str) -> str:
    """Return the target of an entry: its id, which is unique among the entries alone."""
    return f"faq-{name}"


def _issue(reference: str) -> str:
    """Return repository#number as a link to the public issue, where its owner is known."""
    name, _, number = reference.partition("#")
    if name not in _OWNERS:
        return text(reference)
    return f"[{text(reference)}](https://github.com/{_OWNERS[name]}/{name}/issues/{number})"


def _notebook(see: str) -> str:
    name, _, heading = see.partition("#")
    if not name:
        return ""
    title = text(f"{name}, {heading}" if heading else name)
    return f"[{title}](../notebooks/{name}.ipynb)"


def errata_page() -> str:
    """Return the page of the corrections, by document."""
    parts = [
        "# Errata\n\nWhere the published documents are wrong, unsafe or silent, and what a plan does "
        "instead. `--erratum ID=off` takes the document's value, where a plan can do so.\n"
    ]
    named = data_files.facts("check/documents")
    documents: dict[str, list[dict[str, str]]] = {}
    for entry in errata.entries():
        documents.setdefault(str(entry["document"]), []).append(entry)
    for document, entries in documents.items():
        about = named.get(document, {})
        parts.append(f"## {text(about.get('title', document))}\n")
        if about.get("url"):
            parts.append(f"[The document]({about['url']})\n")
        parts += [_erratum(entry) for entry in entries]
    return "\n".join(parts)


def _erratum(entry: dict[str, str]) -> str:
    rows = [
        (heading, text(entry[key]))
        for key, heading in (
            ("says", "the document"),
            ("uses", "the plan"),
            ("why", "why"),
            ("evidence", "evidence"),
        )
        if entry.get(key)
    ]
    facts = "".join(f"- *{heading}*: {words}\n" for heading, words in rows)
    return f"### {text(entry['id'])}\n\n{facts}"
