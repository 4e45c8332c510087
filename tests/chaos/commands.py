"""The commands that disasters happen to: their words, and what they leave when all is well."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from testbed import hosts as testbed

from kimi_nb.plan import build

KIMI = str(Path(sys.executable).with_name("kimi-nb"))
_PROOFS = str(Path(__file__).with_name("proofs.py"))
_MINE = ["--model", "k2.5", "--hw", "a3"]
_CHECKPOINTS = ("Kimi-K2.5-W4A8", "kimi-k2.5-eagle3")
_DONE = {"bench": 8, "sweep": 2}  # measurements


class Command:
    """A command on this machine; `words` is the first call, `again` the second one."""

    def __init__(self, name: str, results: Path) -> None:
        self.name, self.results = name, results

    @property
    def words(self) -> list[str]:
        """The first call."""
        if self.name == "run":
            return [KIMI, "run", *_MINE, "--only", "03", "--run-dir", str(self.results)]
        if self.name == "rehearse":
            where = ["--layout", "single", "--run-dir", str(self.results)]
            return [KIMI, "rehearse", *_MINE, *where]
        return [sys.executable, _PROOFS, self.name, str(self.results)]

    @property
    def again(self) -> list[str]:
        """The call after the disaster."""
        return self.words

    def argv(self, words: Sequence[str]) -> list[str]:
        """The words where they are to be executed."""
        return list(words)

    def lacks(self) -> str:
        """What the results of a command that says it went well do not have; "" for nothing."""
        if self.name == "run":
            book = self.results / "03_single_node.ipynb"
            cells = json.loads(book.read_text())["cells"] if book.exists() else []
            run = [cell for cell in cells if cell.get("execution_count")]
            pages = [
                (self.results / name).exists() for name in ("report.html", "03_single_node.html")
            ]
            return "" if run and all(pages) else "the executed notebook, its page or the report"
        if self.name == "rehearse":
            last = max(self.results.glob("*/rehearsals/[0-9]*"), default=None)
            path = last / "rehearsal.json" if last else None
            whole = path is not None and path.exists() and json.loads(path.read_text())["ok"]
            return "" if whole else "rehearsal.json with ok"
        found = len(list(self.results.rglob("c[0-9]*-r*-*.json")))
        wanted = _DONE[self.name]
        return "" if found == wanted else f"{wanted} measurements, it has {found}"

    def after(self) -> list[list[str]]:
        """Further calls that have to go well after the second one."""
        return []

    def left(self) -> list[str]:
        """What is left elsewhere than among the processes here, once all calls have ended."""
        return []


class Up(Command):
    """kimi-nb up, on two test hosts."""

    def __init__(self, results: Path, hosts: testbed.Hosts) -> None:
        super().__init__("up", results)
        self.hosts, self._site = hosts, results.with_name("site.yaml")
        self._site.write_text(hosts.site("a2", 2))

    @property
    def words(self) -> list[str]:
        target = ["--model", "k2.5", "--hw", "a2", "--layout", "dp", "--site", str(self._site)]
        where = ["--without", "host-tuning", "--confirm", "testbed", "--run-dir", str(self.results)]
        return [KIMI, "up", *target, *where]

    @property
    def again(self) -> list[str]:
        return [*self.words, "--resume"]

    def argv(self, words: Sequence[str]) -> list[str]:
        return self.hosts.argv(words)

    def lacks(self) -> str:
        states = [json.loads(path.read_text()) for path in sorted(self.results.rglob("state.json"))]
        if [one["state"] for one in states][-1:] == ["up"]:
            return ""
        return f"a deployment that is up: {[one['state'] for one in states]}"

    def after(self) -> list[list[str]]:
        return [[KIMI, "status", str(self.results)], [KIMI, "down", str(self.results)]]

    def left(self) -> list[str]:
        out = []
        for host in self.hosts.hosts:
            words = host.shell("ss -Hltnp").splitlines()
            out += [f"{host.name} listens: {line}" for line in words if '"sshd"' not in line]
            out += [f"{host.name}: {path.name}" for path in (host.root / "kimi").glob("*claim*")]
        return out


@contextlib.contextmanager
def made(name: str, folder: Path) -> Iterator[Command]:
    """A command with what it needs, in a folder that is there; its results go below it."""
    if name != "up":
        yield Command(name, folder / "results")
        return
    hosts = testbed.Hosts(folder, 2)
    stand_ins = testbed.StandIns(hosts)
    for host in hosts.hosts:
        stand_ins.prepare(host)
        (host.folder / "etc").mkdir(parents=True, exist_ok=True)
        (host.folder / "etc" / "hccn.conf").write_text("address_0=192.0.2.1\n")
        for checkpoint in _CHECKPOINTS:
            testbed.checkpoint(host.root / "models" / checkpoint)
    with hosts:
        command = Up(folder / "results", hosts)
        site = str(folder / "site.yaml")
        plan = build.plan("k2.5", "a2", "dp", site=site, dropped=["host-tuning"])
        stand_ins.start([plan], hosts.hosts)
        try:
            yield command
        finally:
            for host in hosts.hosts:
                stand_ins.stop(host)
