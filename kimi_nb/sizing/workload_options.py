"""Read the workload that a person gives: fixed lengths, a distribution, or the file of a trace.

>>> of(16000, 1000).longest
17000
>>> of(lengths="1000:200:9,60000:800:1").input_len
6900

The errors name the options of ``kimi-nb size``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kimi_nb.core import bounded_files
from kimi_nb.core.errors import ParameterError, short
from kimi_nb.params import load
from kimi_nb.sizing import request_load
from kimi_nb.sizing.request_load import Workload

_LARGEST_TRACE = 256 << 20  # bytes; its requests take some six times as many of memory


def of(
    input_len: int | None = None,
    output_len: int | None = None,
    *,
    lengths: str = "",
    trace: str = "",
    rate: float = 0.0,
    hit: float = 0.0,
) -> Workload:
    """Return the load of the one way in which it is given.

    ``lengths`` are as `request_load.lengths` reads them, ``trace`` is the path of a file. A
    ``rate`` changes the pace of a trace; a share of ``hit`` stands in place of its own.

    Raises:
        ParameterError: If none is given, or several; if a length or a line is not allowed; if the
            file cannot be read.
    """
    asked = [name for name, one in (("trace", trace), ("lengths", lengths)) if one]
    if not asked:
        if input_len is None or output_len is None:
            raise ParameterError(
                "size: --input and --output are wanted, or --lengths, or --trace FILE."
            )
        return request_load.fixed(input_len, output_len, rate=rate, hit=hit)
    if len(asked) > 1 or input_len is not None or output_len is not None:
        raise ParameterError(
            f"--{asked[0]} has its own lengths: leave --input, --output and the other one out."
        )
    found = request_load.lengths(lengths) if lengths else _of_file(trace)
    found = found.at(rate) if rate else found
    return replace(found, hit=hit or found.hit)


def _of_file(given: Any) -> Workload:
    """Return the load of the trace in a file."""
    if not isinstance(given, str):
        raise ParameterError(f"--trace: the path of a file is wanted, found {short(given, 40)}.")
    path = load.user_path(given, "--trace")
    try:
        return request_load.trace(bounded_files.lines(path, _LARGEST_TRACE), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise ParameterError(f"--trace {path}: cannot be read: {short(error, 120)}.") from None
