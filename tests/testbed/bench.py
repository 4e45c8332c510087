"""Stands for ``vllm bench serve`` in the tests: two completions from the URL that it is given.

It measures nothing; what it shows is that the benchmark's job finds the server, by the name that
the serving job has written down, with the model's name and the key that it needs.
"""

import json
import os
import sys
import urllib.request


def main(words: list[str]) -> None:
    def value(flag: str) -> str:
        return words[words.index(flag) + 1]

    url, model = value("--base-url") + value("--endpoint"), value("--model")
    headers = {"Content-Type": "application/json"}
    if "OPENAI_API_KEY" in os.environ:
        headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    for _ in range(2):
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with opener.open(request, timeout=10) as answer:
            assert json.load(answer)["choices"]
    print(f"asked {url}\nSuccessful requests: 2")


if __name__ == "__main__":
    main(sys.argv[1:])
