"""Does a service keep its contract? Named checks against any OpenAI-compatible Kimi endpoint.

Usage::

    found = verify.verify(target.of(service))  # a Contract: ok, failed, as_dict()

In a terminal: ``kimi-nb verify http://192.0.2.11:8000 --model kimi_k25``. A new check is a function
in the module of its family and an entry in `kimi_nb/data/prove/checks.yaml`.
"""

from kimi_nb.prove.verify.contract import Contract, Result
from kimi_nb.prove.verify.runner import verify

__all__ = ["Contract", "Result", "verify"]
