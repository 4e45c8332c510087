"""Put into words what is known of an event: what the log says, which part failed, what a code means.

The three are kept apart. An echo of the log is no knowledge: ``confidence`` is "known" where a
signature explains the failure, "component" where a code or the words tell the part of the system,
and "seen" where there is only what the log says.
"""

from __future__ import annotations

from dataclasses import dataclass

from kimi_nb.diagnose import components
from kimi_nb.diagnose.event_roles import Candidate

UNKNOWN = "unknown"  # the signature of a failure that matches none
_LONGEST = 240  # characters of a message in a cause
_NO_PART = "10_faq#The doctor"


@dataclass(frozen=True)
class Explanation:
    """What is known of one event.

    Attributes:
        says: What the log says, as a sentence of its own words.
        component: The id of the part of the system, or "".
        code: The vendor's code, or "".
        means: What the code means, with its table, or "".
        page: The public page of the code's table, or "".
        exception: The type of the exception, or "".
        help: What to look at next.
    """

    says: str
    component: str
    code: str
    means: str
    page: str
    exception: str
    confidence: str
    help: str
    see: str

    @property
    def cause(self) -> str:
        """All of it as one sentence."""
        part = components.by_id(self.component).title if self.component else ""
        told = [self.says, f"in {part}" if part else "", self.means]
        return "; ".join(filter(None, told)).rstrip(" .:")


def of(one: Candidate, node: str) -> Explanation:
    """Return what is known of an event that no signature explains, or beside its signature."""
    root, code, part = one.event.root, one.code, one.component
    helps = [code.help if code else "", part.way_out(node) if part else ""]
    line = one.line
    return Explanation(
        _says(one),
        part.id if part else "",
        code.code if code else "",
        str(code) if code else "",
        code.page if code else "",
        root.type if root else "",
        "known" if one.match else "component" if part or code else "seen",
        " ".join(filter(None, helps)) or f"Read {line.file} from line {line.number}.",
        part.see if part else _NO_PART,
    )


def _says(one: Candidate) -> str:
    root = one.event.root
    if root is not None:
        text = f"{root.type}: {root.text}" if root.text else root.type
        if not root.text and one.event.said.text != root.said:
            text = f"{one.event.said.text.strip()} ({root.type})"
    else:
        text = one.event.said.text
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


def accused(one: Candidate) -> str:
    """Return what a collective says of the rank that did not come."""
    return (
        f"rank {one.accused} is behind the others or silent: the ranks that report an error "
        "waited for it in a collective operation"
    )
