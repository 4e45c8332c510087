"""Ask a server by other people's clients, and print what each made of it, as JSON.

    .clients/bin/python tests/deploy/client_calls.py http://127.0.0.1:8000 kimi_k25

Run in the clients' own environment. An outcome has no words of a model: keys, types, reasons.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

URL, MODEL = sys.argv[1].rstrip("/"), sys.argv[2]
SAID = [{"role": "user", "content": "hello world"}]
PLAIN = {"chat_template_kwargs": {"thinking": False}}
CHOICE = {**PLAIN, "structured_outputs": {"choice": ["yes"]}}


def kinds(value: Any) -> Any:
    """The keys and the types of a value; of a list those of its first element."""
    if isinstance(value, dict):
        return {key: kinds(one) for key, one in value.items()}
    if isinstance(value, list):
        return [kinds(value[0])] if value else []
    return type(value).__name__


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error that the client makes of the server's answer."""
    try:
        return call()
    except Exception as error:
        status = getattr(error, "status_code", None)
        body = getattr(error, "body", None)
        return {"error": type(error).__name__, "status": status, "body": kinds(body)}


def openai_client() -> dict[str, Any]:
    import openai

    client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0)

    def chat(**more: Any) -> Any:
        made = client.chat.completions.create(
            model=more.pop("model", MODEL), messages=SAID, max_tokens=6, temperature=0, **more
        )
        if not more.get("stream"):
            found = made.model_dump()
            return [kinds(found), [one["finish_reason"] for one in found["choices"]]]
        parts = [one.model_dump() for one in made]
        return [
            kinds(parts[0]),
            kinds(parts[-1]),
            len(parts),
            [choice["finish_reason"] for one in parts for choice in one["choices"]][-1],
        ]

    def text(**more: Any) -> Any:
        found = client.completions.create(
            model=MODEL, prompt=["hello", "how are you"], max_tokens=4, temperature=0, **more
        ).model_dump()
        return [kinds(found), [one["finish_reason"] for one in found["choices"]]]

    usage = {"include_usage": True}
    return {
        "chat": outcome(lambda: chat(extra_body=PLAIN)),
        "stream": outcome(lambda: chat(stream=True, stream_options=usage, extra_body=PLAIN)),
        "logprobs": outcome(lambda: chat(logprobs=True, top_logprobs=2, extra_body=PLAIN)),
        "choice": outcome(lambda: chat(extra_body=CHOICE)),
        "several": outcome(text),
        "echo": outcome(lambda: text(echo=True)),
        "no model": outcome(lambda: chat(model="nope")),
        "too hot": outcome(lambda: chat(top_p=2)),
        "no alternatives": outcome(lambda: chat(top_logprobs=3)),
        "models": outcome(lambda: [one.id for one in client.models.list()]),
    }


def langchain_client() -> dict[str, Any]:
    from langchain_openai import ChatOpenAI

    def model(**more: Any) -> Any:
        return ChatOpenAI(
            base_url=f"{URL}/v1",
            api_key="none",
            model=more.pop("model", MODEL),
            temperature=0,
            max_retries=0,
            max_tokens=40,
            extra_body=PLAIN,
            **more,
        )

    def chosen() -> Any:
        made = model().bind(extra_body=CHOICE).invoke("hello")
        return [made.content, made.response_metadata["finish_reason"]]

    return {
        "usage": outcome(lambda: kinds(model().invoke("hello").usage_metadata)),
        "stream": outcome(lambda: len(list(model().stream("hello"))) > 5),
        "choice": outcome(chosen),
        "no model": outcome(lambda: model(model="nope").invoke("hello")),
    }


def litellm_client() -> dict[str, Any]:
    import litellm

    litellm.suppress_debug_info = True

    def chat(**more: Any) -> Any:
        found = litellm.completion(
            model=f"hosted_vllm/{more.pop('model', MODEL)}",
            api_base=f"{URL}/v1",
            messages=SAID,
            max_tokens=6,
            temperature=more.pop("temperature", 0),
            num_retries=0,
            **more,
        ).model_dump()
        return [sorted(found), [one["finish_reason"] for one in found["choices"]]]

    return {
        "chat": outcome(lambda: chat(extra_body=PLAIN)),
        "two": outcome(lambda: chat(n=2, temperature=1, extra_body=PLAIN)),
        "no model": outcome(lambda: chat(model="nope")),
    }


def instructor_client() -> dict[str, Any]:
    import instructor
    import openai
    from pydantic import BaseModel

    class Answer(BaseModel):
        answer: bool

    client = instructor.from_openai(
        openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0),
        mode=instructor.Mode.MD_JSON,
    )
    return {
        "typed": outcome(
            lambda: (
                type(
                    client.chat.completions.create(
                        model=MODEL,
                        messages=SAID,
                        response_model=Answer,
                        max_tokens=200,
                        temperature=0,
                        max_retries=0,
                        extra_body={
                            **PLAIN,
                            "structured_outputs": {"regex": r'\{"answer":true\}'},
                        },
                    ).answer
                ).__name__
            )
        ),
    }


def pydantic_ai_client() -> dict[str, Any]:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def ask(name: str) -> Any:
        model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="none"))
        settings = {"max_tokens": 9, "temperature": 0, "extra_body": CHOICE}
        made = Agent(model).run_sync("hello", model_settings=settings)
        return [made.output, [type(one).__name__ for one in made.all_messages()]]

    return {"choice": outcome(lambda: ask(MODEL)), "no model": outcome(lambda: ask("nope"))}


CLIENTS = {
    "openai": openai_client,
    "langchain-openai": langchain_client,
    "litellm": litellm_client,
    "instructor": instructor_client,
    "pydantic-ai": pydantic_ai_client,
}

if __name__ == "__main__":
    print(json.dumps({name: outcome(ask) for name, ask in CLIENTS.items()}))
