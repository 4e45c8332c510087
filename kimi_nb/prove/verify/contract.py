"""What verification found: named checks, each with pass, fail or not applicable.

Usage::

    found = verify.verify(target)
    found.ok, found.failed, found.as_dict()["checks"]
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kimi_nb import show
from kimi_nb.plan import router

PASS, FAIL, SKIP = "pass", "fail", "not applicable"
DOOR = router.EXAMPLE_PROXY  # what no engine can keep behind that front door
ABOVE = ", as said above"  # ends the text of a check that could not be made any more


@dataclass(frozen=True)
class Result:
    """The result of one check.

    Attributes:
        sent: What was asked.
        got: What came back, or why the check does not apply.
        help: What to do about a failure, with the id of its entry in the troubles.
        cause: The cause of a failure, where it is not specific to the check.
    """

    name: str
    status: str
    sent: str
    got: str
    help: str
    cause: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return plain values."""
        return asdict(self)

    @property
    def family(self) -> str:
        """The part of the name before the slash."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, repr=False)
class Contract(show.Shown):
    """All results, in the order of the checks.

    Attributes:
        mark: REHEARSAL if stand-ins answered.
        logs: The first failure in the service's logs, if a check failed.
    """

    url: str
    model: str
    results: tuple[Result, ...]
    mark: str = ""
    logs: str = ""

    @property
    def ok(self) -> bool:
        """Whether at least one check passed and none failed."""
        return not self.failed and any(one.status == PASS for one in self.results)

    @property
    def failed(self) -> tuple[Result, ...]:
        """The results of the checks that failed."""
        return tuple(one for one in self.results if one.status == FAIL)

    @property
    def only_door(self) -> bool:
        """Whether something failed, and all of it is what the front door makes impossible.

        It is a failure for whoever asks there. Another front door mends it, no engine does.
        """
        return bool(self.failed) and all(one.cause == DOOR for one in self.failed)

    @property
    def counts(self) -> dict[str, int]:
        """The number of results by status."""
        return {
            status: sum(one.status == status for one in self.results)
            for status in (PASS, FAIL, SKIP)
        }

    @property
    def left_out(self) -> dict[str, tuple[str, ...]]:
        """The reasons for which several checks do not apply, each with the names of the checks."""
        out: dict[str, tuple[str, ...]] = {}
        for one in self.results:
            if one.status == SKIP and not one.got.endswith(ABOVE):
                out[one.got] = (*out.get(one.got, ()), one.name)
        return {why: names for why, names in out.items() if self.url and len(names) > 1}

    def summary(self) -> show.Table:
        """Return how many checks passed, failed and do not apply, and why several do not."""
        told = [(status, count, "") for status, count in self.counts.items()]
        told += [("", len(names), why) for why, names in self.left_out.items()]
        return show.Table(f"{len(self.results)} checks", ("status", "checks", "why"), tuple(told))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "ok": self.ok,
            "url": self.url,
            "model": self.model,
            "mark": self.mark,
            "logs": self.logs,
            "left_out": {why: list(names) for why, names in self.left_out.items()},
            "checks": [one.as_dict() for one in self.results],
        }

    def broken(self) -> Contract:
        """Return only the failed checks, as a contract of their own."""
        return Contract(self.url, self.model, self.failed, self.mark, self.logs)

    def part(self, *families: str) -> Contract:
        """Return only the results of some families of checks."""
        return Contract(
            self.url,
            self.model,
            tuple(one for one in self.results if one.family in families),
            self.mark,
        )

    def table(self) -> show.Table:
        """Return a table with a row for each check; only failures say what to do."""
        words = ", ".join(f"{count} {status}" for status, count in self.counts.items() if count)
        where = f"{self.model or 'no model'} at {self.url or 'no service'}"
        told = [one for one in self.results if not one.got.endswith(ABOVE)]
        rest = [one for one in self.results if one not in told]
        left_out = tuple(
            ("", f"{len(names)} {SKIP}", "", show.visible(why, lines=False), "")
            for why, names in self.left_out.items()
        )
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
            + left_out
            + ((("", f"{len(rest)} {rest[0].status}", "", rest[0].got, ""),) if rest else ())
            + ((("logs", "", "", show.visible(self.logs, lines=False), ""),) if self.logs else ()),
        )

    def __str__(self) -> str:
        """Return what a terminal of 100 columns holds: what was sent stands with the failures."""
        whole = self.table()
        rows = tuple((name, status, got) for name, status, _, got, _ in whole.rows)
        parts = [str(show.Table(whole.title, ("check", "status", "got"), rows))]
        for one in self.failed:
            if one.got.endswith(ABOVE):  # nothing was sent, and the first one says what to do
                continue
            facts = (("sent", one.sent), ("got", one.got), ("next", one.help))
            told = tuple((name, show.visible(text, lines=False)) for name, text in facts if text)
            parts.append(str(show.Table("", (one.name, ""), told)))
        return "\n\n".join(parts)


class Failed(Exception):
    """A check failed; ``got`` is what came back.

    ``cause`` is an entry of ``causes`` in `kimi_nb/data/prove/checks.yaml` if the reason is not
    specific to the check (empty-200, no-answer, ...).
    """

    def __init__(self, got: str, cause: str = "") -> None:
        super().__init__(got)
        self.got, self.cause = got, cause


class Gone(Failed):
    """The service no longer accepts connections: nothing more can be asked."""

    def __init__(self, got: str) -> None:
        super().__init__(got, "gone")


class NoAPI(Failed):
    """Something answers, but it is not an OpenAI API: nothing more needs to be asked."""

    def __init__(self, got: str, cause: str = "no-api") -> None:
        super().__init__(got, cause)


class KeyRefused(Failed):
    """401 or 403, for the key that was given or for none."""

    def __init__(self, got: str) -> None:
        super().__init__(got, "key-refused")


class Skip(Exception):
    """A check does not apply; ``why`` is the reason."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
