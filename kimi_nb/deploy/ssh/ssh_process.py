"""Run pyinfra in a process of its own.

It replaces Python's sockets and threads by gevent's, which must not happen inside a notebook. The
process is run as ``python -m kimi_nb.deploy.ssh.ssh_process`` and speaks JSON lines: orders
(connect, look, change) on its input, answers on its output. `transport.SshNodes` is the caller's
side. The connections stay open until the input ends. Reads are pyinfra facts, writes are pyinfra
operations; both come from the bundle's node_steps.py.
"""

from gevent import monkey

monkey.patch_all()

import functools  # noqa: E402
import json  # noqa: E402
import socket  # noqa: E402
import sys  # noqa: E402
from typing import Any  # noqa: E402

from pyinfra import logger  # noqa: E402
from pyinfra.api import Config, Inventory, State  # noqa: E402
from pyinfra.api.connect import connect_all  # noqa: E402
from pyinfra.api.exceptions import PyinfraError  # noqa: E402
from pyinfra.api.facts import get_fact  # noqa: E402
from pyinfra.api.operation import add_op  # noqa: E402
from pyinfra.api.operations import run_ops  # noqa: E402
from pyinfra.api.state import BaseStateCallback, StateStage  # noqa: E402
from pyinfra.context import ctx_host, ctx_state  # noqa: E402

from kimi_nb.deploy.ssh import channel_bounds  # noqa: E402

CONNECT_SECONDS = 10


class _Errors(BaseStateCallback):
    """The reasons why hosts could not be reached, by name."""

    def __init__(self) -> None:
        self.by_host: dict[str, str] = {}

    # pyinfra calls this on an instance, but declares it without self.
    def host_connect_error(  # type: ignore[override]
        self, state: State, host: Any, error: Any
    ) -> None:
        self.by_host[host.name] = str(error)


class _Hosts:
    def __init__(self, order: dict[str, Any]) -> None:
        sys.path.insert(0, order["folder"])
        import node_steps  # the bundle's own file, which users can run with pyinfra too

        self.steps, self.gone = node_steps, order["gone"]
        inventory = Inventory(([(name, data) for name, data in order["hosts"]], {}))
        self.state = State(
            inventory,
            Config(CONNECT_TIMEOUT=CONNECT_SECONDS, PARALLEL=min(len(inventory), 64)),
            check_for_changes=False,
        )
        self._flooded: set[str] = set()
        self.errors = _Errors()
        self.state.add_callback_handler(self.errors)

    def connect(self) -> dict[str, str]:
        """Reach every host; return the reasons by name for those that cannot be reached."""
        self.state.set_stage(StateStage.Connect)
        try:
            connect_all(self.state)
        except PyinfraError as error:  # no host could be reached
            logger.debug("%s", error)
        for host in self.state.activated_hosts:
            connector: Any = host.connector  # that of SSH
            connection = connector.client.get_transport()
            _end_when_gone(connection, self.gone)
            channel_bounds.hold(connection, functools.partial(self._flooded.add, host.name))
        return self.errors.by_host

    def look(self, texts: dict[str, str], seconds: int) -> dict[str, Any]:
        """Run read-only verbs on nodes."""

        def ask(host: Any) -> Any:
            with ctx_state.use(self.state), ctx_host.use(host):
                return get_fact(
                    self.state,
                    host,
                    self.steps.Looked,
                    args=("look",),
                    kwargs={"_stdin": self.steps.Script(texts[host.name]), "_timeout": seconds},
                    apply_failed_hosts=False,
                )

        hosts = [host for host in self.state.inventory if host.name in texts]
        jobs = {host.name: self.state.pool.spawn(ask, host) for host in hosts}
        out = {}
        for name, job in jobs.items():
            job.join()
            host = self.state.inventory.get_host(name)
            out[name] = _looked(job.value) or {
                "error": str(job.exception or "") or self._none(host, seconds)
            }
        return out

    def _none(self, host: Any, seconds: int | None) -> str:
        """Return why a node has given no answer."""
        if host.name in self._flooded:
            size, lines = channel_bounds.LARGEST >> 20, channel_bounds.LINES
            return f"no answer: it has sent more than {size} MB or {lines} lines"
        return "no answer: the connection ended" + (
            f", or nothing came for {seconds} s" if seconds else ""
        )

    def change(self, texts: dict[str, str], verb: str, seconds: int | None) -> dict[str, Any]:
        """Run a verb on nodes, as an operation."""
        state = self.state
        hosts = [host for host in state.inventory if host.name in texts]
        state.active_hosts = set(hosts)
        state.op_meta.clear()
        state.is_executing = False
        for host in state.inventory:
            state.ops[host], host.op_hash_order = {}, []
        state.current_stage = StateStage.Prepare
        metas: dict[Any, Any] = {}
        for host in hosts:
            metas |= add_op(
                state,
                self.steps.step,
                verb,
                self.steps.Script(texts[host.name]),
                host=host,
                name=verb,
                _timeout=seconds,
            )
        state.current_stage = StateStage.Execute
        try:
            run_ops(state, no_wait=True)
        except PyinfraError as error:  # it failed on all hosts
            logger.debug("%s", error)
        return {host.name: self._answer(host, meta, seconds) for host, meta in metas.items()}

    def _answer(self, host: Any, meta: Any, seconds: int | None) -> dict[str, Any]:
        if not meta.is_complete():
            return {"error": self._none(host, seconds)}
        lines = self.steps.node_call.lines(meta.stdout_lines)
        out: dict[str, Any] = {"lines": [[line.kind, line.thing, line.text] for line in lines]}
        if not meta.did_succeed() and not any(line.kind == "fail" for line in lines):
            out["error"] = " ".join(meta.stderr_lines)[-300:] or self._none(host, seconds)
        return out


def _end_when_gone(transport: Any, seconds: int) -> None:
    """End a connection, also one through others, once the network took nothing for that long.

    Without it a link that is cut is noticed after a quarter of an hour where something was sent,
    and never where an answer is waited for.
    """
    transport.set_keepalive(max(1, seconds // 4))
    if hasattr(transport.sock, "get_transport"):  # a channel: it goes through a jump host
        _end_when_gone(transport.sock.get_transport(), seconds)
    else:
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * seconds)


def _looked(lines: Any) -> dict[str, Any]:
    """Return the answer of a look; {} where the connection ended before its last line."""
    if not lines or (lines[-1].kind, lines[-1].thing) != ("fact", "exit"):
        return {}
    *found, end = lines
    out: dict[str, Any] = {"lines": [[line.kind, line.thing, line.text] for line in found]}
    if end.text != "0" and not any(line.kind == "fail" for line in found):
        out["error"] = f"node.sh ended with exit code {end.text}"
    return out


def main() -> int:
    """Serve the caller until its input ends; return 0."""
    hosts: _Hosts | None = None
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "connect":
            hosts = _Hosts(order)
            answer: dict[str, Any] = {"failed": hosts.connect()}
        else:
            assert hosts is not None
            answer = {
                "nodes": hosts.look(order["texts"], order["seconds"])
                if order["do"] == "look"
                else hosts.change(order["texts"], order["verb"], order["seconds"])
            }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    # The connections end with this process; closing many of them one by one would take long.
    return 0


if __name__ == "__main__":
    sys.exit(main())
