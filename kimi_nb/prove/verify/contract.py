"""What verification found: named checks, each pass, fail or not applicable.

found = verify.verify(target)
found.ok, found.failed, found.as_dict()["checks"]
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kimi_nb.show import values as show

PASS, FAIL, SKIP = "pass", "fail", "not applicable"
ABOVE = ", as said above"  # the end of what came of a check that could not be made any more


@dataclass(frozen=True)
class Result:
    """One check: ``sent`` is what was asked, ``got`` what came back, or why it does not apply;
    ``help`` the way out of a fail, with the id of its trouble."""

    name: str
    status: str
    sent: str
    got: str
    help: str

    def as_dict(self) -> dict[str, str]:
        """As plain values."""
        return asdict(self)

    @property
    def family(self) -> str:
        """What stands before the slash of its name."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, repr=False)
class Contract(show.Shown):
    """All results, in the order of the checks. ``mark`` is REHEARSAL where stand-ins answered;
    ``logs`` is the first failure that the service's logs show, where something failed."""

    url: str
    model: str
    results: tuple[Result, ...]
    mark: str = ""
    logs: str = ""

    @property
    def ok(self) -> bool:
        """Whether something was checked and nothing failed."""
        return not self.failed and any(one.status == PASS for one in self.results)

    @property
    def failed(self) -> tuple[Result, ...]:
        """What failed."""
        return tuple(one for one in self.results if one.status == FAIL)

    @property
    def counts(self) -> dict[str, int]:
        """How many of each status."""
        return {
            status: sum(one.status == status for one in self.results)
            for status in (PASS, FAIL, SKIP)
        }

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "ok": self.ok,
            "url": self.url,
            "model": self.model,
            "mark": self.mark,
            "logs": self.logs,
            "checks": [one.as_dict() for one in self.results],
        }

    def broken(self) -> Contract:
        """What failed only, as a table of its own."""
        return Contract(self.url, self.model, self.failed, self.mark, self.logs)

    def part(self, *families: str) -> Contract:
        """The results of some families of checks only."""
        return Contract(
            self.url,
            self.model,
            tuple(one for one in self.results if one.family in families),
            self.mark,
        )

    def table(self) -> show.Table:
        """A check a row; the way out only where one is needed."""
        words = ", ".join(f"{count} {status}" for status, count in self.counts.items() if count)
        where = f"{self.model or 'no model'} at {self.url or 'no service'}"
        told = [one for one in self.results if not one.got.endswith(ABOVE)]
        rest = [one for one in self.results if one not in told]
        return show.Table(
            f"{self.mark + ' of ' if self.mark else ''}{where}: {words or 'nothing checked'}",
            ("check", "status", "sent", "got", "way out"),
            tuple(
                (
                    one.name,
                    one.status,
                    show.visible(one.sent, lines=False),
                    show.visible(one.got, lines=False),
                    one.help if one.status == FAIL else "",
                )
                for one in told
            )
            + ((("", f"{len(rest)} {rest[0].status}", "", rest[0].got, ""),) if rest else ())
            + ((("logs", "", "", show.visible(self.logs, lines=False), ""),) if self.logs else ()),
        )


class Failed(Exception):
    """A check that failed: what came back. ``cause`` is an entry of `causes` in data/checks.yaml
    where the reason is no check's own (empty-200, no-answer, ...)."""

    def __init__(self, got: str, cause: str = "") -> None:
        super().__init__(got)
        self.got, self.cause = got, cause


class Gone(Failed):
    """The service takes no connections any more: nothing further can be asked."""

    def __init__(self, got: str) -> None:
        super().__init__(got, "gone")


class NoAPI(Failed):
    """Something answers, and it is no OpenAI API: nothing further needs to be asked."""

    def __init__(self, got: str, cause: str = "no-api") -> None:
        super().__init__(got, cause)


class KeyRefused(Failed):
    """401 or 403 for the key that was given, or for none."""

    def __init__(self, got: str) -> None:
        super().__init__(got, "key-refused")


class Skip(Exception):
    """A check that does not apply, and why."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
