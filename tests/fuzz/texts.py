"""What programs and authors write: logs, scripts, documents, files of containers."""

from __future__ import annotations

from pathlib import Path

from fuzz import change
from fuzz.targets import Target, command, written

_FINE = (
    b"(EngineCore_DP1 pid=7) ERROR 11-21 10:00:01 [core.py:1] RuntimeError: NPU out of memory.\n"
)


def _log(data: bytes, folder: Path) -> str:
    """A log beside a good one."""
    written(folder / "logs" / "n1", "rank_0.log", data)
    written(folder / "logs" / "n2", "rank_1.log", _FINE)
    return command("doctor", folder / "logs") + command("doctor", folder / "logs", "--json")


def _script(name: str):
    def read(data: bytes, folder: Path) -> str:
        path = written(folder, name, data)
        shown = command("check", path) + command("check", path, "--fix", "--dry-run")
        assert path.read_bytes() == data
        return shown

    return read


_VLLM = (b"vllm serve ", b"--tensor-parallel-size ", b"--additional-config '{\"a\": 1}' ",
         b"export VLLM_USE_V1=1\n", b"$(", b"${a:-", b"<<EOF\n", b"EOF\n", b"for i in 1 2; do\n",
         b"done\n", b"if true; then\n", b"fi\n", b"case $a in\n", b"f() {\n", b"}\n", b"\\\n",
         b"{1..999999}", b"$((1<<99))", b"a=(1 2)\n", b"${a[@]}", b"docker run --net=host ")  # fmt: skip

TARGETS = (
    Target("log", _log, (b"ERROR 11-21 10:00:00 ", b"(EngineCore_DP0 pid=7) ", b"Traceback (most",
           b"RuntimeError: ", b"[rank0]: ", b"EngineDeadError", b"\n  File \"", b"EI0006")),
    Target("script", _script("run.sh"), _VLLM),
    Target("document", _script("deploy.md"), (b"```bash\n", b"```\n", b"~~~\n", b"    ", b"<pre>", *_VLLM[:6])),
    Target("compose", _script("compose.yaml"), (b"services:\n", b"command: ", b"image: ", b"- ", b"kind: Pod\n", b"{{ .Values.a }}"),
           change.yaml_values),
    Target("dockerfile", _script("Dockerfile"), (b"FROM ", b"ENV ", b"ENTRYPOINT [", b"CMD ", b"ARG a\n", b"RUN <<EOF\n")),
)  # fmt: skip
