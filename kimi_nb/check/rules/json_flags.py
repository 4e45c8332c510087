"""Rules on JSON flags: whether they hold JSON, and whether the version has their keys there."""

from __future__ import annotations

import ast
import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kimi_nb import catalog
from kimi_nb.catalog import arguments, config_classes, fill_ins, setting_values
from kimi_nb.check.findings import ERROR, WARNING
from kimi_nb.check.rules.engine import formerly
from kimi_nb.check.rules.registry import Problem, rule
from kimi_nb.check.view.deployment import Deployment
from kimi_nb.check.view.engine_view import EngineView, Spot
from kimi_nb.core import data_files

_CATALOG = "the configuration classes of the version (kimi_nb/data/catalog/vllm.json)"


_AND_SO_ON = re.compile(r"[{\[,]\s*(?:\.{3}|\N{HORIZONTAL ELLIPSIS})\s*[}\],\"]")


def why_not_json(text: str) -> tuple[str, str]:
    """Return what is wrong with a text that is not JSON, and what to write instead."""
    if re.search(r"<[A-Za-z_][\w .-]*>|\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", text):
        return "a placeholder stands where a value belongs", "Put the value in, in double quotes."
    if "'" in text or re.search(r"\b(True|False|None)\b", text):
        try:
            ast.literal_eval(re.sub(r"\btrue\b|\bfalse\b|\bnull\b", "None", text))
            return ("it is a Python literal", "Write double quotes, true, false and null.")
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            pass
    if re.search(r",\s*[}\]]", text):
        return "a comma stands before a closing bracket", "Take the last comma out."
    if re.search(r"\{\s*[A-Za-z_]\w*\s*:", text):
        return (
            "its keys have no quotes",
            "Put the whole in single quotes, so that the shell leaves the double ones.",
        )
    if text.count("{") != text.count("}") or text.count("[") != text.count("]"):
        return "its brackets do not match", "Close every bracket, and quote the whole."
    return "it is not JSON", "Check quotes, commas and brackets."


@rule(
    "json/syntax",
    ERROR,
    "A JSON flag holds JSON.",
    "Write JSON in single quotes.",
    "json.loads, which the parser calls",
)
def is_json(d: Deployment) -> Iterator[Problem]:
    """The parser refuses what is not JSON; the message shows a position in a text that the shell
    has already changed."""
    for server in (*d.options(), *d.prose):
        for given in server.given:
            value = server.flags.get(given.name)
            if (
                isinstance(value, arguments.Unread)
                and value.why.startswith("not JSON")
                and given.text == value.text
                and "${" not in value.text
                and not re.fullmatch(r"\W*(\.\.\.|JSON|json)\W*", value.text)
                and not _AND_SO_ON.search(value.text)
            ):
                what, fix = why_not_json(value.text)
                shown = " ".join(fill_ins.shown(value.text).split())
                unsure = server in d.prose or (not d.engine_known and formerly(given))
                yield Problem(
                    server.at(given.index),
                    f"{given.spelt}: {what}: {shown[:80]}",
                    fix,
                    WARNING if unsure else "",
                )


def _tables(server: EngineView) -> Iterator[tuple[str, Mapping[str, Any], Spot]]:
    for flag, value in server.flags.items():
        if isinstance(value, dict):
            yield flag, value, server.of(flag)


@rule(
    "json/key",
    ERROR,
    "Every key of a JSON flag exists at this version.",
    "Spell the key as the version does, or take it out.",
    _CATALOG,
)
def key_exists(d: Deployment) -> Iterator[Problem]:
    """Compilation, KV transfer, balancing and speculation refuse unknown keys, so that nothing
    starts, and so do all tables from vLLM 0.16.0 on; others before it drop them silently."""
    for server in d.options():
        for flag, table, spot in _tables(server):
            name = config_classes.of_flag(flag)
            if name:
                strict = config_classes.refuses_unknown(name, d.engine.known)
                severity = ERROR if strict and d.engine_known else WARNING
                yield from _unknown(d, flag, name, table, spot, severity, flag)
        for inner in server.transfers[1:]:
            # MultiConnector makes a configuration of its own of each.
            flag = "kv-transfer-config"
            severity = ERROR if d.engine_known else WARNING
            path = f"{flag} connectors"
            yield from _unknown(d, flag, "KVTransferConfig", inner, server.of(flag), severity, path)


def _unknown(
    d: Deployment,
    flag: str,
    name: str,
    table: Mapping[str, Any],
    spot: Spot,
    severity: str,
    path: str,
) -> Iterator[Problem]:
    row = d.engine.known
    known = config_classes.fields(name, row)
    if not known:
        return
    for key, value in table.items():
        inner = config_classes.INNER.get((name, key))
        if inner and isinstance(value, dict):
            yield from _unknown(d, flag, inner, value, spot, severity, f"{path}.{key}")
        if key in known:
            continue
        runs = catalog.tables("vllm")["configs"][name].get(key)
        home = _home(key, row, name)
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
        if runs:
            said = (
                f"is known from {runs[0]['first']} to {runs[-1]['last']} only, this is {d.engine}"
            )
            fix = f"It belongs in {home} now." if home else ""
        elif home:
            said, fix = f"is no key of it: it belongs in {home}", f"Move it to {home}."
        else:
            said = "is in no version"
            fix = f"Did you mean {near[0]}?" if near else ""
        yield Problem(spot, f"--{path}: the key '{key}' {said}", fix, severity)


def _home(key: str, row: str, here: str) -> str:
    """Return where a key belongs that is at the wrong depth or in the wrong flag, "" if nowhere."""
    for flag, name in config_classes.STRICT.items():
        if (
            name != here
            and key in config_classes.fields(name, row)
            and key not in ("model", "method", "backend")
        ):
            return f"--{flag}"
    for (outer, inner_key), name in config_classes.INNER.items():
        if name != here and key in config_classes.fields(name, row):
            flag = next(flag for flag, cls in config_classes.STRICT.items() if cls == outer)
            return f"--{flag} {inner_key}"
    if here == "KVTransferConfig" and key in (
        "prefill",
        "decode",
        "use_ascend_direct",
        "dp_size",
        "tp_size",
        "pp_size",
        "lookup_rpc_port",
        "backend",
    ):
        return "--kv-transfer-config kv_connector_extra_config"
    return ""


@rule(
    "json/additional-key",
    WARNING,
    "Every key of --additional-config is read at this version.",
    "Spell the key as the version does, or take it out.",
    "vllm-ascend's sources (kimi_nb/data/catalog/vllm-ascend.json)",
    needs=("ascend", "version"),
)
def additional_keys(d: Deployment) -> Iterator[Problem]:
    """The plugin takes any key and reads the ones it knows: a misspelt one changes nothing, and
    nobody says so."""
    tables = catalog.tables("vllm-ascend")
    version = d.engine.version
    for server in d.options():
        spot = server.of("additional-config")
        for key, value in server.table("additional-config").items():
            runs = tables["additional_config"].get(key)
            active = catalog.active(runs, version) if runs else None
            if active and "also_under" in active:
                yield Problem(
                    spot,
                    f"--additional-config: {key} lives under "
                    f"{active['also_under']} since {active['first']}",
                    f'Write {{"{active["also_under"]}": {{"{key}": ...}}}}.',
                )
            elif runs and not active:
                yield Problem(
                    spot,
                    f"--additional-config: {key} is read from {runs[0]['first']} "
                    f"to {runs[-1]['last']} only, this is {d.engine}",
                )
            elif not runs:
                yield from _strange_key(key, tables, d, spot)
            inner = config_classes.ASCEND_INNER.get(key)
            if inner and isinstance(value, dict) and inner in tables["nested"]:
                for name in value:
                    if not catalog.active(tables["nested"][inner].get(name, []), version):
                        near = difflib.get_close_matches(name, tables["nested"][inner], n=1)
                        yield Problem(
                            spot,
                            f"--additional-config: {key}.{name} is not read by {d.engine}",
                            f"Did you mean {near[0]}?" if near else "",
                        )


def _strange_key(
    key: str, tables: Mapping[str, Any], d: Deployment, spot: Spot
) -> Iterator[Problem]:
    home = next(
        (
            f"--additional-config {outer}"
            for outer, name in config_classes.ASCEND_INNER.items()
            if key in tables["nested"].get(name, {})
        ),
        "",
    ) or _home(key, d.engine.known, "")
    near = difflib.get_close_matches(key, tables["additional_config"], n=1, cutoff=0.8)
    fix = f"Move it to {home}." if home else f"Did you mean {near[0]}?" if near else ""
    yield Problem(
        spot,
        f"--additional-config: '{key}' is read by no listed version"
        + (f"; it belongs in {home}" if home else ""),
        fix,
    )


@rule(
    "json/value",
    ERROR,
    "A value in a JSON flag is one that its key takes.",
    "Write one that is named.",
    _CATALOG,
)
def json_values(d: Deployment) -> Iterator[Problem]:
    """The configuration classes refuse a number out of range, a name that they do not know and a
    value of another kind, on every node, after the arguments were parsed."""
    for server, _ in d.profiles():
        for flag, table, spot in _tables(server):
            for path, value in _leaves(table):
                if isinstance(value, str) and fill_ins.holds(value):
                    continue
                name = f"{flag}.{path}"
                if allowed := setting_values.fault(d.engine, name, value):
                    sure = d.engine_known or setting_values.never_taken(name, value)
                    yield Problem(
                        spot,
                        f"--{flag}: {path} is {json.dumps(value)[:60]}: {allowed}",
                        "",
                        "" if sure else WARNING,
                    )


# The methods of speculative decoding whose drafts come from a model of their own.
_OWN_MODEL = ("draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark")


@rule(
    "json/draft-model",
    ERROR,
    "A draft that is a model of its own names it.",
    'Add "model": the folder or hub id of the draft.',
    "vLLM SpeculativeConfig: num_speculative_tokens without a speculative model",
)
def draft_model(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses a number of drafts without a model to propose them, and the
    size of the engine in the place of the draft's."""
    for server, _ in d.profiles():
        table = server.table("speculative-config")
        method = str(table.get("method") or "draft_model")
        own = method in _OWN_MODEL
        if own and table.get("num_speculative_tokens") and table.get("model") is None:
            yield Problem(
                server.of("speculative-config"), f"the method {method} has no model for its drafts"
            )
        if table.get("tensor_parallel_size") is not None:
            yield Problem(
                server.of("speculative-config"),
                "tensor_parallel_size is no key for a draft",
                "Write draft_tensor_parallel_size.",
            )


@rule(
    "json/quoted-boolean",
    WARNING,
    "A boolean in JSON has no quotes.",
    "Write true or false without quotes.",
    'JSON: "false" is a text, and a text is true',
)
def booleans_bare(d: Deployment) -> Iterator[Problem]:
    """ "false" in quotes is a text; where the engine asks for truth, every text is true."""
    for server, _ in d.profiles():
        for flag, table, spot in _tables(server):
            for path, value in _leaves(table):
                if isinstance(value, str) and value.lower() in ("true", "false"):
                    yield Problem(spot, f'--{flag}: {path} is the text "{value}"')


def _leaves(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        here = f"{path}.{key}" if path else str(key)
        if isinstance(value, dict) and value:
            yield from _leaves(value, here)
        else:
            yield here, value


@rule(
    "json/kv-role",
    ERROR,
    "A KV connector has its role.",
    'Add "kv_role": "kv_producer", "kv_consumer" or "kv_both".',
    "vLLM KVTransferConfig: kv_role is mandatory with kv_connector",
)
def kv_role(d: Deployment) -> Iterator[Problem]:
    """The configuration check refuses a connector without a role."""
    for server, _ in d.profiles():
        for kv in server.transfers:
            if kv.get("kv_connector") and kv.get("kv_role") is None:
                yield Problem(
                    server.of("kv-transfer-config"),
                    f"kv_connector {kv['kv_connector']} with kv_role not given",
                )


@rule(
    "json/kv-connector",
    WARNING,
    "A KV connector is one that the version has.",
    "Name a connector of the version, or the newer version.",
    "vllm-ascend: what vllm_ascend/distributed registers, by tag; vLLM: KVConnectorFactory",
    needs=("version",),
)
def kv_connector(d: Deployment) -> Iterator[Problem]:
    """'Unsupported connector type', on every node; or the connector of that name that was written
    for another accelerator."""
    facts = data_files.facts("catalog/versions")
    known: Mapping[str, Any] = facts["connectors"]
    for server, _ in d.profiles():
        for kv in server.transfers:
            name, path = (
                str(kv.get("kv_connector") or ""),
                str(kv.get("kv_connector_module_path") or ""),
            )
            spot = server.of("kv-transfer-config")
            if name and not fill_ins.holds(name):
                yield from _connector(d, name, bool(path), known, spot)
            gone = facts["connector_modules"].get(path)
            if gone and d.ascend and catalog.earlier(str(gone["last"]), d.engine.version):
                yield Problem(
                    spot,
                    f"kv_connector_module_path {path} is gone since {gone['last']}, and registered "
                    "connectors need none",
                    "Take kv_connector_module_path out.",
                )


@rule(
    "json/connector-module",
    WARNING,
    "A connector is loaded from a module that some version has.",
    "Take kv_connector_module_path out: registered connectors need none.",
    "vllm_ascend/distributed at each tag, as listed (kimi_nb/data/catalog/versions.yaml)",
    needs=("ascend",),
)
def connector_module(d: Deployment) -> Iterator[Problem]:
    """ModuleNotFoundError, on every node, before anything is loaded."""
    facts = data_files.facts("catalog/versions")
    known = {f"{_CONNECTORS}kv_transfer.{one}" for one in facts["connector_homes"]}
    known |= {*facts["connector_modules"]}
    for server in d.options():
        for kv in server.transfers:
            path = str(kv.get("kv_connector_module_path") or "")
            if path.startswith(_CONNECTORS) and path not in known:
                yield Problem(
                    server.of("kv-transfer-config"), f"no listed version has the module {path}"
                )


_CONNECTORS = "vllm_ascend.distributed."


def _connector(
    d: Deployment, name: str, own: bool, known: Mapping[str, Any], spot: Spot
) -> Iterator[Problem]:
    """Report a connector that the version does not have."""
    entry = known.get(name)
    if entry is None:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
        if not own or near:
            yield Problem(
                spot,
                f"no listed version has a KV connector {name}",
                f"Did you mean {near[0]}?" if near else "",
                ERROR if near else WARNING,
            )
        return
    if not d.ascend or "ascend" not in entry:
        return
    first, last = map(str, entry["ascend"])
    if catalog.earlier(d.engine.version, first) or catalog.earlier(last, d.engine.version):
        until = f" to {last}" if catalog.earlier(last, d.engine.version) else ""
        use = entry.get("use")
        yield Problem(
            spot,
            f"vllm-ascend has the KV connector {name} from {first}{until}, this is {d.engine}",
            f"Use {use}." if use else "",
        )
    elif not catalog.earlier(d.engine.version, str(entry.get("renamed", "9999"))):
        yield Problem(
            spot, f"{name} is an old name, since {entry['renamed']}", f"Use {entry['use']}."
        )


@rule(
    "json/draft-name",
    WARNING,
    "A draft method has its own name.",
    'Write "method": "mtp".',
    "vLLM SpeculativeConfig: method `...` is deprecated and replaced with mtp",
)
def draft_name(d: Deployment) -> Iterator[Problem]:
    """The old name works today with a warning in the log; a later version refuses it."""
    for server, _ in d.profiles():
        method = str(server.table("speculative-config").get("method") or "")
        if method.endswith("_mtp"):
            yield Problem(
                server.of("speculative-config"), f"the method {method} is deprecated: it is mtp"
            )


@rule(
    "json/draft-kind",
    WARNING,
    "The method of a draft is that of its model.",
    'Write "method": "eagle3".',
    "vLLM SpeculativeConfig: eagle and eagle3 read other hidden states and other weights",
)
def draft_kind(d: Deployment) -> Iterator[Problem]:
    """The weights do not fit the layers, or no draft is ever accepted."""
    for server in d.options():
        table = server.table("speculative-config")
        model = str(table.get("model") or "")
        if table.get("method") == "eagle" and re.search(r"(?i)eagle[-_]?3(?![\d.]|[bB])", model):
            yield Problem(
                server.of("speculative-config"), f"the method is eagle, the draft {model[:60]}"
            )
