"""The vendors of accelerators.

Apart from `fields`, so that a module that needs only the names does not load pydantic.
"""

from __future__ import annotations

from typing import Literal, get_args

Vendor = Literal["ascend", "nvidia", "amd", "cpu"]  # cpu: no accelerator
VENDORS: tuple[Vendor, ...] = get_args(Vendor)
