"""Name the variables that lead downloads and installations through a site's proxies and mirrors."""

from __future__ import annotations

from urllib.parse import urlsplit

from kimi_nb.params.schema import Network


def variables(network: Network) -> dict[str, str]:
    """Return the variables for hf, modelscope, pip, conda, git and curl.

    Proxies are named in both cases: curl reads http_proxy in lower case only. modelscope 1.38.0
    reads the domain (hub/utils/utils.py), modelscope_hub 0.5.1 the endpoint first (config.py).

    >>> variables(Network(huggingface="https://hf-mirror.example.org"))
    {'HF_ENDPOINT': 'https://hf-mirror.example.org'}
    """
    out: dict[str, str] = {}
    for name, value in (
        ("http_proxy", network.http_proxy),
        ("https_proxy", network.https_proxy),
        ("no_proxy", ",".join(network.no_proxy)),
    ):
        if value:
            out |= {name: value, name.upper(): value}
    if network.huggingface:
        out["HF_ENDPOINT"] = network.huggingface
    if network.modelscope:
        out["MODELSCOPE_ENDPOINT"] = network.modelscope
        out["MODELSCOPE_DOMAIN"] = urlsplit(network.modelscope).netloc
    if network.pip_index:
        out["PIP_INDEX_URL"] = network.pip_index
    return out
