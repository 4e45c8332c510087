"""The commands of clients, filled in for a service."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kimi_nb.params import schema
from kimi_nb.plan import build, client_commands
from kimi_nb.plan.spec import ClientCommand

URL = "http://192.0.2.1:8000"
SOURCE = schema.Source(document="guide", section="8")
WORDS = (
    "bench --url {url} --model {served_name} --tokenizer {weights} --max-concurrency {concurrency}"
)


def client(**more) -> schema.Client:
    argv = (*WORDS.split(), "--num-prompts", "{prompts}", "{other}")
    return schema.Client(title="A bench", argv=argv, source=SOURCE, **more)


def commands(site="h200", **named: schema.Client) -> tuple[ClientCommand, ...]:
    asked = build.request("k2.5", "h200", "single", site=site)
    model = asked.model.model_copy(update={"clients": named | {"unused": client()}})
    recipe = asked.recipe.model_copy(update={"clients": tuple(named)})
    asked = dataclasses.replace(asked, model=model, recipe=recipe)
    return client_commands.clients(asked, URL, "kimi")


def test_the_command_of_a_client():
    first, second = commands(b=client(env={"A": "1"}), a=client())
    assert (first.name, second.name) == ("b", "a")
    assert (first.title, first.env, first.sweep, first.source) == (
        "A bench",
        {"A": "1"},
        (),
        "guide 8",
    )
    assert " ".join(first.argv) == (
        f"bench --url {URL} --model kimi --tokenizer moonshotai/Kimi-K2.5 --max-concurrency 0 "
        "--num-prompts 0 {other}"
    )


def test_the_command_of_a_sweep_is_that_of_its_first_concurrency():
    (one,) = commands(a=client(sweep=(4, 16)))
    assert one.sweep == (4, 16)
    assert one.argv[-5:] == ("--max-concurrency", "4", "--num-prompts", "40", "{other}")


@pytest.mark.parametrize(
    ("site", "weights"), [("h200", "moonshotai/Kimi-K2.5"), ("mine", "/data/models/kimi-k2.5")]
)
def test_the_tokenizer_is_where_the_site_says(site, weights, nodes_file, tmp_path):
    if site == "mine":
        path = tmp_path / "mine.yaml"
        with open(nodes_file("h200", 1), encoding="utf-8") as file:
            text = file.read()
        path.write_text(text.replace("paths:", "paths:\n  models: /data/models"), encoding="utf-8")
        site = str(path)
    (one,) = commands(site, a=client())
    assert one.argv[one.argv.index("--tokenizer") + 1] == weights


def test_weights_in_a_folder_of_our_own_are_named_by_their_id():
    """A client runs anywhere, where the folder of the nodes may not be."""
    (one,) = build.plan("k2.5", "a3", "single").clients
    assert one.argv[one.argv.index("--model") + 1] == "Eco-Tech/Kimi-K2.5-W4A8"


def test_the_request_with_which_the_documents_try_a_service():
    text = [{"type": "text", "text": "The future of AI is"}]
    body = {
        "model": "kimi",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 1024,
        "temperature": 1.0,
        "top_p": 0.95,
    }
    assert client_commands.chat_body("kimi") == body
    words = client_commands.curl(URL, "kimi")
    assert words[:-1] == [
        *("curl", "--fail-with-body", f"{URL}/v1/chat/completions"),
        *("-H", "Content-Type: application/json", "-d"),
    ]
    assert json.loads(words[-1]) == body
    assert words[-1].startswith('{\n  "model": "kimi",\n  "messages": [\n    {')
