"""The marks of Kimi's chat formats, which stand in a text only where a parser is missing or wrong.

>>> THINKING.split("<think>It is July.</think>Yes")[-1]
'Yes'
>>> bool(TOOL_CALL.search("<|tool_calls_section_begin|>"))
True
"""

from __future__ import annotations

import re

# Kimi-K2: <think>; Kimi-VL: ◁think▷; Kimi-K3 (vLLM 0.32.0, kimi_k3_reasoning_parser.py): a channel.
THINKING = re.compile(
    r"</?think>|◁/?think▷|<\|open\|>think<\|sep\|>"
    r"|<\|close\|>think<\|sep\|>(?:<\|open\|>response<\|sep\|>)?"
)
# Kimi-K2: <|tool_call_begin|>; Kimi-K3 (kimi_k3_tool_parser.py): <|open|>call tool="f" index="1"<|sep|>.
TOOL_CALL = re.compile(
    r"<\|tool_calls?_\w*(?:\|>)?|<\|(?:open|close)\|>(?:tools|call|argument)\b[^<]{0,400}<\|sep\|>"
)
