"""Write the commands that clients run: the documents' benchmarks and evaluations, and a chat."""

from __future__ import annotations

import json
from typing import Any

from kimi_nb.plan.roles import Request, fill
from kimi_nb.plan.spec import ClientCommand

QUESTION = "The future of AI is"


def clients(request: Request, url: str, served_name: str) -> tuple[ClientCommand, ...]:
    """Return the client commands of the recipe, filled in for this service.

    The command of a sweep is that for its first concurrency.
    """
    out = []
    for name in request.recipe.clients:
        spec = request.model.clients[name]
        first = spec.sweep[0] if spec.sweep else 0
        words = {
            "url": url,
            "served_name": served_name,
            # For the tokenizer. A client runs on any machine, and asks the hub that its command
            # names (VLLM_USE_MODELSCOPE) unless the site says where the weights are.
            "weights": request.located(request.weights)
            if request.site.paths.models
            else request.weights.id,
            "concurrency": str(first),
            "prompts": str(10 * first),
        }
        out.append(
            ClientCommand(
                name=name,
                title=spec.title,
                env=dict(spec.env),
                argv=tuple(fill(word, words) for word in spec.argv),
                sweep=spec.sweep,
                source=str(spec.source),
            )
        )
    return tuple(out)


def chat_body(served_name: str) -> dict[str, Any]:
    """Return the request with which the documents try a service."""
    return {
        "model": served_name,
        "messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}],
        "max_tokens": 1024,
        "temperature": 1.0,
        "top_p": 0.95,
    }


def curl(url: str, served_name: str) -> list[str]:
    """Return the command that sends the request of `chat_body`."""
    return [
        "curl",
        "--fail-with-body",
        f"{url}/v1/chat/completions",
        "-H",
        "Content-Type: application/json",
        "-d",
        json.dumps(chat_body(served_name), indent=2),
    ]
