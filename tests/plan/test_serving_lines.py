"""The lines of a serving job: what they are, and what a shell does with them on stand-ins."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest
from plan import made_values

from kimi_nb.core import shell
from kimi_nb.core.errors import PlanError
from kimi_nb.plan import serving_job
from kimi_nb.plan.job_image import JobImage
from kimi_nb.plan.serving_job import LEADER, Serving, lines
from kimi_nb.plan.spec import EngineSpec

SIF = JobImage("apptainer", "/i/v.sif", "", "/i/env", ("/p",), "--nv", "/c")
SQSH = dataclasses.replace(SIF, runtime="pyxis", file="/i/v.sqsh")
HOST = "/p/server_host.txt"


def engine(
    at: int = 0, *argv: str, group: int = 0, env=None, port: int | None = 8000
) -> EngineSpec:
    return made_values.engine(
        *argv,
        name=f"mixed{group}-rank{at}",
        node=f"n{at}",
        address=f"192.0.2.{at + 1}",
        group=group,
        http_port=port,
        env={"A": "1"} if env is None else env,
    )


def group(count: int = 2, env=None) -> list[EngineSpec]:
    """The engines of one group, whose ranks meet at the first."""
    meets = ("--data-parallel-address", "192.0.2.1", "--seed", "7")
    own = [("--start-rank", str(at)) if at else () for at in range(count)]
    return [engine(at, *meets, *own[at], env=env) for at in range(count)]


def replicas(env=None) -> list[EngineSpec]:
    return [
        engine(at, "--port", str(8000 + at), group=at, env=env, port=8000 + at or None)
        for at in range(2)
    ]


def written(engines, image=None, **more) -> list[str]:
    return lines(Serving(engines, **more), HOST, "kimi", 112, image)


NAME = [
    "# The other jobs, and you, find the server by this file.",
    "hostname > /p/server_host.txt",
]


# One engine ---------------------------------------------------------------------------------------


def test_one_engine_is_the_command_of_the_job():
    one = engine(0, "--port", "8000", "--x", "a b")
    serve = ["vllm serve m \\", "    --port 8000 \\", "    --x 'a b'"]
    assert written([one]) == ["export A=1", *NAME, *serve]
    assert written([one], SIF) == ["export A=1", *NAME, *SIF.call(one.argv, 112, devices=True)]
    assert "--nv" in written([one], SIF)[3]
    assert written([one], SQSH)[3].startswith("srun --nodes=1 --ntasks=1 --cpus-per-task=112 ")


def test_variables_of_every_job_are_not_told_again():
    env = {"VIRTUAL_ENV": "/v", "PATH": "/v/bin", "HF_HOME": "/h", "B": "x y"}
    assert written([engine(env=env)])[0] == "export B='x y'"
    tuned = {"VLLM_TUNED_CONFIG_FOLDER": "/t t"}
    assert written([engine(env=tuned)])[0] == (
        "if [ -d '/t t' ]; then export VLLM_TUNED_CONFIG_FOLDER='/t t'; fi"
    )
    # The only node of a job may have an address of its own: nothing is told of another one.
    assert written([engine(env={"IP": "192.0.2.1"})])[0] == "export IP=192.0.2.1"


@pytest.mark.parametrize("address", ["192.0.2.1", "http://192.0.2.2:80"])
def test_an_address_of_the_site_is_refused_where_slurm_chooses_the_nodes(address):
    with pytest.raises(PlanError) as caught:
        written(group(env={"A": "1", "IP": address}))
    assert str(caught.value) == (
        f"IP={address} holds an address of the site file, but under SLURM the nodes of a job are not "
        "known before it runs. Take {address} and {leader} out of it."
    )


@pytest.mark.parametrize(
    ("numbers", "fits"), [((0, 0, 1, 1), False), ((0, 0, 0, 0), True), ((0, 1, 2, 3), True)]
)
def test_a_job_is_one_group_or_groups_of_one_node(numbers, fits):
    engines = [engine(at, group=number) for at, number in enumerate(numbers)]
    if fits:
        assert written(engines)
        return
    with pytest.raises(PlanError) as caught:
        written(engines)
    assert str(caught.value) == (
        "Under SLURM a plan is one group over its nodes, or groups of one node each; found 2 groups "
        "on 4 nodes. Set groups=1 or nodes=1."
    )


# One group over nodes -----------------------------------------------------------------------------

GROUP = r"""
# The ranks meet at the address of the first node, on which also the API listens.
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
leader=$(getent ahostsv4 "${nodes[0]}" | awk 'NR == 1 {print $1}') || true
case "$leader" in
    '' | 127.0.*)
        tell ERROR "${nodes[0]} has no address for the other nodes: getent says '$leader'" >&2
        exit 1
        ;;
esac
export leader
# What the engine of one node is told; SLURM_NODEID is its number within the job.
serve() {
    local own=()
    case "$SLURM_NODEID" in
        0) own=() ;;
        1) own=(--start-rank 1) ;;
        *) tell ERROR "node $SLURM_NODEID of the job has no engine" >&2; exit 1 ;;
    esac
    export A=1
    exec vllm serve m \
        --data-parallel-address "$leader" \
        --seed 7 \
        "${own[@]}"
}
# The other jobs, and you, find the server by this file.
hostname > /p/server_host.txt
# One task on each node; all end with the first that fails. Since Slurm 22.05 srun does
# not take over --cpus-per-task of the job.
srun --nodes=2 --ntasks-per-node=1 --cpus-per-task=112 \
    --kill-on-bad-exit=1 \
    --output=kimi.%j.node%n.out \
    --error=kimi.%j.node%n.err \
    bash -c "$(declare -f tell serve); serve"
"""


def test_the_lines_of_a_group_over_two_nodes():
    assert written(group()) == GROUP.strip("\n").split("\n")


def test_a_group_in_an_image_starts_it_on_each_node():
    under = "\n".join(written(group(), SIF))
    assert "    exec apptainer exec --nv --bind /p \\\n        /i/v.sif \\\n" in under
    assert (
        '            --seed 7 \\\n        "${own[@]}"' in under and "container-image" not in under
    )
    steps = written(group(), SQSH)
    at = steps.index("srun --nodes=2 --ntasks-per-node=1 --cpus-per-task=112 \\")
    assert steps[at + 1 : at + 7] == [f"    {shell.quote(one)} \\" for one in SQSH.options()]
    assert steps[at + 7] == "    --kill-on-bad-exit=1 \\"
    assert "    exec vllm serve m \\" in steps


def test_only_the_address_of_the_first_node_is_the_leader():
    words = serving_job._words(
        engine(
            0,
            "--data-parallel-address",
            "192.0.2.1",
            "--master-addr",
            "192.0.2.1",
            "--host",
            "192.0.2.1",
        ),
        "192.0.2.1",
    )
    assert words == [
        ("vllm", "serve", "m"),
        ("--data-parallel-address", LEADER),
        ("--master-addr", LEADER),
        ("--host", "192.0.2.1"),
    ]
    assert isinstance(words[1][1], shell.Raw) and not isinstance(words[3][1], shell.Raw)
    other = serving_job._words(engine(0, "--master-addr", "192.0.2.7"), "192.0.2.1")
    assert other[1] == ("--master-addr", "192.0.2.7")


def test_engines_that_meet_nowhere_look_up_no_address():
    alone = [engine(at, "--port", str(8000 + at), group=at) for at in range(2)]
    text = "\n".join(written(alone))
    assert "scontrol" not in text and "leader" not in text
    assert "        0) own=(--port 8000) ;;\n        1) own=(--port 8001) ;;" in text


def test_words_of_one_engine_are_quoted_and_the_leader_is_not():
    mixed = [engine(0, "--x", "a b"), engine(1, "--master-addr", "192.0.2.1", "--y", "$(id)")]
    text = "\n".join(written(mixed))
    assert "        0) own=(--x 'a b') ;;" in text
    assert "        1) own=(--master-addr \"$leader\" --y '$(id)') ;;" in text
    # Only one of the two needs the address, and none is common to both.
    assert "leader=$(getent" not in text


# Replicas with a router ---------------------------------------------------------------------------

ADDRESS = r"""
replica{at}=$(getent ahostsv4 "${{nodes[{at}]}}" | awk 'NR == 1 {{print $1}}') || true
case "$replica{at}" in
    '' | 127.0.*)
        tell ERROR "${{nodes[{at}]}} has no address for the other nodes: getent says '$replica{at}'" >&2
        exit 1
        ;;
esac
"""
FIND = [
    "# The router finds the replicas by the addresses of their nodes, and has the first one's.",
    'mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")',
    *(line for at in range(2) for line in ADDRESS.format(at=at).strip("\n").split("\n")),
]
ROUTER = r"""
srun --nodes=2 --ntasks-per-node=1 --cpus-per-task=112 \
    --kill-on-bad-exit=1 \
    --wait=1 \
    --output=kimi.%j.node%n.out \
    --error=kimi.%j.node%n.err \
    bash -c "$(declare -f tell serve); serve" &
engines=$!
vllm-router \
    --host "$replica0" \
    --port 1999 \
    --policy round_robin \
    --worker-urls "http://$replica0:8000" "http://$replica1:8001" \
    --worker-startup-timeout-secs 86400 \
    --worker-startup-check-interval 5 &
router=$!
# The replicas and their router are one service: none of them serves on without the others.
trap 'kill "$engines" "$router" 2> /dev/null || true' EXIT
trap 'exit 143' TERM
code=0
wait -n || code=$?
if kill -0 "$router" 2> /dev/null; then ended="a replica"; else ended="the router"; fi
tell ERROR "$ended has ended with exit code $code, and the job with it" >&2
[ "$code" != 0 ] || code=1
exit "$code"
"""


def test_the_lines_of_replicas_behind_a_router():
    found = written(replicas(), router_port=1999)
    assert found[: len(FIND)] == FIND
    tail = ROUTER.strip("\n").split("\n")
    assert found[-len(tail) :] == tail
    own = [line for line in found if " own=(" in line]
    assert own == [
        "    local own=()",
        "        0) own=(--port 8000) ;;",
        "        1) own=(--port 8001) ;;",
    ]


def test_nodes_of_one_group_that_answer_apart_have_a_leader_and_a_router():
    found = written(group(), router_port=1999)
    assert found[: len(FIND) + 2] == [*FIND, "leader=$replica0", "export leader"]
    assert "leader=$replica0" not in written(replicas(), router_port=1999)


def test_a_replica_without_a_port_has_the_default_of_vllm():
    bare = [engine(at, "--x", str(at), group=at, port=None) for at in range(2)]
    text = "\n".join(written(bare, router_port=1999))
    assert '--worker-urls "http://$replica0:8000" "http://$replica1:8000"' in text


def test_a_door_stands_in_front_of_a_keyed_router():
    found = written(replicas(), router_port=1999, keyed=True)
    at = found.index("engines=$!")
    assert found[at + 1 : at + 6] == [
        "# It asks for the key; the job is submitted from this folder or from the one above.",
        "door=keyed_door.py",
        '[ -e "$door" ] || door=jobs/keyed_door.py',
        'python "$door" \\',
        '    --host "$replica0" \\',
    ]
    assert found[at + 6] == "    --port 1999 \\"
    assert found[at + 7 : at + 10] == [
        "    -- vllm-router \\",
        "    --host '{host}' \\",
        "    --port '{port}' \\",
    ]


def test_the_router_of_an_image_is_a_step_beside_the_engines():
    steps = "\n".join(written(replicas(), SQSH, router_port=1999))
    assert '\nsrun --nodes=1 --ntasks=1 --cpus-per-task=1 --overlap -w "${nodes[0]}" \\\n' in steps
    assert "/i/env/bin/vllm-router \\" in steps and "check-interval 5 &\nrouter=$!" in steps
    under = "\n".join(written(replicas(), SIF, router_port=1999))
    assert "engines=$!\napptainer exec --bind /p \\\n" in under  # it needs no accelerator
    keyed = "\n".join(written(replicas(), SIF, router_port=1999, keyed=True))
    assert '/i/env/bin/python "$PWD/$door" \\' in keyed
    assert "/i/env/bin/vllm-router \\" in keyed


# As a shell runs them -----------------------------------------------------------------------------

STAND_INS = r"""
set -eo pipefail
tell() {{ echo "$1: $2"; }}
hostname() {{ echo login; }}
scontrol() {{ printf 'n0\nn1\n'; }}
getent() {{ case "$2" in n0) echo "{first}" ;; n1) echo "192.0.2.22 STREAM n1" ;; esac; }}
vllm() {{ echo "node $SLURM_NODEID: $*"; }}
vllm-router() {{ echo "router: $*"; {routes}; }}
export -f tell vllm
srun() {{ {steps}; }}
"""


# What a step of Slurm does with its last word, on each of these nodes.
TASKS = 'local at; for at in {}; do SLURM_NODEID=$at bash -c "${{@: -1}}"; done'
BOTH = TASKS.format("0 1")


def run(body: list[str], folder, first="192.0.2.11 STREAM n0", steps=BOTH, routes=":"):
    """Run the lines on stand-ins: exit code, and what was printed."""
    head = STAND_INS.format(first=first, steps=steps, routes=routes)
    # A function cannot be executed in place of a shell.
    text = "\n".join([head, *body]).replace(HOST, f"{folder}/host").replace("exec vllm", "vllm")
    # A file, as Slurm runs it: with -c bash forgets a job that ends before `wait -n`.
    (folder / "job").write_text(text)
    done = subprocess.run(
        ["bash", "job"], cwd=folder, capture_output=True, text=True, check=False, timeout=30
    )
    return done.returncode, done.stdout + done.stderr


def test_each_node_starts_its_own_engine(tmp_path):
    code, told = run(written(group()), tmp_path)
    assert (code, (tmp_path / "host").read_text()) == (0, "login\n")
    assert told.splitlines() == [
        "node 0: serve m --data-parallel-address 192.0.2.11 --seed 7",
        "node 1: serve m --data-parallel-address 192.0.2.11 --seed 7 --start-rank 1",
    ]


def test_a_node_without_an_engine_ends_with_an_error(tmp_path):
    code, told = run(written(group()), tmp_path, steps=TASKS.format("2"))
    assert code == 1 and told == "ERROR: node 2 of the job has no engine\n"


@pytest.mark.parametrize(("first", "says"), [("127.0.1.1 STREAM n0", "127.0.1.1"), ("", "")])
def test_a_first_node_without_an_address_ends_the_job(tmp_path, first, says):
    found = run(written(group()), tmp_path, first=first)
    assert found == (1, f"ERROR: n0 has no address for the other nodes: getent says '{says}'\n")


@pytest.mark.parametrize(
    ("steps", "routes", "ended", "code"),
    [
        ("exit 3", "exec sleep 60", "a replica has ended with exit code 3", 3),
        (":", "exec sleep 60", "a replica has ended with exit code 0", 1),
        ("exec sleep 60", "exit 4", "the router has ended with exit code 4", 4),
    ],
)
def test_the_job_ends_with_the_first_of_all_that_ends(tmp_path, steps, routes, ended, code):
    found, told = run(written(replicas(), router_port=1999), tmp_path, steps=steps, routes=routes)
    assert found == code
    assert f"ERROR: {ended}, and the job with it\n" in told


def test_the_router_gets_the_addresses_of_the_replicas(tmp_path):
    body = written(replicas(), router_port=1999)
    _, told = run(body, tmp_path, steps="exec sleep 60", routes=":")
    assert told.splitlines()[0] == (
        "router: --host 192.0.2.11 --port 1999 --policy round_robin --worker-urls "
        "http://192.0.2.11:8000 http://192.0.2.22:8001 --worker-startup-timeout-secs 86400 "
        "--worker-startup-check-interval 5"
    )
