#!/usr/bin/env python3
"""python3 ready.py MODEL PORT [PORT...]

Ready is an engine that answers: every port gives one token of a completion. Exit 0 when all do,
otherwise 1 with what the first of them said. POD_IP is where they listen; VLLM_API_KEY is sent if
it is set. Standard library only: it runs as a probe inside the engine's container.
"""

import json
import os
import sys
import urllib.error
import urllib.request

PATIENCE = 20  # seconds for one token; the probe itself has a limit for all


def ask(host, port, model):
    """Return "" if an engine completes a prompt of one word, otherwise what it said."""
    body = {"model": model, "prompt": "ready", "max_tokens": 1, "temperature": 0}
    headers = {"Content-Type": "application/json"}
    if os.environ.get("VLLM_API_KEY"):
        headers["Authorization"] = f"Bearer {os.environ['VLLM_API_KEY']}"
    where = f"[{host}]" if ":" in host else host
    request = urllib.request.Request(
        f"http://{where}:{port}/v1/completions", json.dumps(body).encode(), headers
    )
    # No proxy of the environment: the engine is in this pod.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE) as answer:
            choices = json.load(answer).get("choices")
    except urllib.error.HTTPError as error:
        return f"port {port}: HTTP {error.code}"
    except (OSError, ValueError, AttributeError) as error:
        return f"port {port}: {error}"
    return "" if choices else f"port {port}: an answer without choices"


def main(argv):
    if len(argv) < 3 or not all(port.isdecimal() for port in argv[2:]):
        print("ready.py MODEL PORT [PORT...]", file=sys.stderr)
        return 2
    for port in argv[2:]:
        said = ask(os.environ.get("POD_IP", "127.0.0.1"), port, argv[1])
        if said:
            print(said, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
