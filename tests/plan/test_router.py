"""The front door of a plan: its command line word by word, and where it is refused."""

from __future__ import annotations

import pytest

from kimi_nb.core.errors import ParameterError
from kimi_nb.plan import router
from kimi_nb.plan.spec import EngineSpec


def engine(role: str, number: int, port: int | None = 8000) -> EngineSpec:
    """An engine at 192.0.2.NUMBER; without a port it answers nobody."""
    return EngineSpec(
        name=f"{role}{number}",
        node=f"n{number}",
        address=f"192.0.2.{number}",
        role=role,
        group=0,
        rank=0,
        ranks=1,
        dp_size=1,
        tp_size=1,
        devices=(0,),
        http_port=port,
        kv_port=None,
        rpc_port=None,
        side_channel_port=None,
        headless=port is None,
        env={},
        argv=(),
    )


PD = [
    engine("decode", 3, 7100),
    engine("prefill", 1, 7100),
    engine("decode", 4, 7101),
    engine("prefill", 5, None),
    engine("prefill", 2, 7102),
]
MIXED = [engine("mixed", 1, 8000), engine("mixed", 2, None), engine("mixed", 3, 8001)]
PATIENCE = "--worker-startup-timeout-secs 3600 --worker-startup-check-interval 5"


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def test_the_upstream_proxy_gets_hosts_and_ports_of_both_roles():
    made = router.router("upstream", 1999, PD)
    assert (made.kind, made.node, made.host, made.port) == ("upstream", "n1", "192.0.2.1", 1999)
    assert (made.url, made.folder) == ("http://192.0.2.1:1999", "")
    assert made.workers == (
        ("prefill", "http://192.0.2.1:7100", "prefill1"),
        ("prefill", "http://192.0.2.2:7102", "prefill2"),
        ("decode", "http://192.0.2.3:7100", "decode3"),
        ("decode", "http://192.0.2.4:7101", "decode4"),
    )
    assert made.argv == words(
        "python load_balance_proxy_server_example.py --port 1999 --host 192.0.2.1 "
        "--prefiller-hosts 192.0.2.1 192.0.2.2 --prefiller-ports 7100 7102 "
        "--decoder-hosts 192.0.2.3 192.0.2.4 --decoder-ports 7100 7101"
    )


def test_vllm_router_of_both_roles():
    made = router.router("vllm-router", 30080, PD, folder="/venvs/router")
    assert (made.kind, made.folder) == ("vllm-router", "/venvs/router")
    assert made.argv == words(
        "vllm-router --host 192.0.2.1 --port 30080 --vllm-pd-disaggregation --policy round_robin "
        "--prefill http://192.0.2.1:7100 --prefill http://192.0.2.2:7102 "
        f"--decode http://192.0.2.3:7100 --decode http://192.0.2.4:7101 {PATIENCE}"
    )


def test_vllm_router_of_groups_that_serve_alike():
    made = router.router("vllm-router", 30080, MIXED)
    assert made.argv == words(
        "vllm-router --host 192.0.2.1 --port 30080 --policy round_robin --worker-urls "
        f"http://192.0.2.1:8000 http://192.0.2.3:8001 {PATIENCE}"
    )
    short = router.vllm_router("h", "1", [("mixed", "http://a")], patience=60)
    assert short[short.index("--worker-startup-timeout-secs") + 1] == "60"


def test_a_router_runs_where_it_is_placed_and_listens_there():
    made = router.router("vllm-router", 30080, MIXED, place=router.Place("login", "door", "::"))
    assert (made.node, made.host, made.url) == ("login", "door", "http://door:30080")
    assert made.argv[:5] == words("vllm-router --host :: --port 30080")


@pytest.mark.parametrize("kind", ["upstream", "vllm-router"])
def test_with_a_key_a_door_stands_in_front(kind):
    place = router.Place("n9", "192.0.2.9", "0.0.0.0")
    made = router.router(kind, 1999, PD, keyed=True, place=place)
    assert made.argv[:7] == words("python keyed_door.py --host 0.0.0.0 --port 1999 --")
    inner = made.argv[7:]
    assert inner[inner.index("--host") + 1] == "{host}"
    assert inner[inner.index("--port") + 1] == "{port}"
    open_one = router.router(kind, 1999, PD, place=place).argv
    assert [word for word in open_one if word not in ("0.0.0.0", "1999")] == [
        word for word in inner if word not in ("{host}", "{port}")
    ]


def test_the_door_can_be_another_program():
    assert router.door("h", 80, ["a", "b"], "there/door.py") == [
        *("python", "there/door.py", "--host", "h", "--port", "80", "--", "a", "b")
    ]


def test_the_upstream_proxy_has_notes_and_others_have_none():
    (note,) = router.notes(router.router("upstream", 1999, PD))
    assert note.startswith("the front door is vllm-ascend's example proxy: what prefill refuses")
    assert "--set router=vllm-router plans" in note
    assert router.notes(router.router("vllm-router", 1999, PD)) == ()
    assert router.notes(None) == ()


@pytest.mark.parametrize(
    ("kind", "port", "layout", "doors", "says"),
    [
        ("upstream", 1999, "pd", 1, ""),
        (None, 1999, "pd", 0, ""),
        (None, None, "single", 1, ""),
        ("vllm-router", 30080, "single", 2, ""),
        ("vllm-router", None, "dp", 3, ""),
        (
            None,
            0,
            "single",
            2,
            "--set router.port=0: layout single has no router of its own; router=vllm-router puts "
            "one in front of several groups (groups=2).",
        ),
        (
            "upstream",
            None,
            "dp",
            2,
            "--set router=upstream: the upstream proxy sends each request to a prefill and then to a "
            "decode engine, which only layout pd has. In layout dp choose router=vllm-router.",
        ),
        (
            "vllm-router",
            30080,
            "dp",
            1,
            "router vllm-router: layout dp has one group here, and the API of one group needs no "
            "router. Plan several (--set groups=2), or leave the router out.",
        ),
    ],
)
def test_where_a_router_has_something_to_do(kind, port, layout, doors, says):
    if not says:
        assert router.check(kind, port, layout, doors) is None
        return
    with pytest.raises(ParameterError) as caught:
        router.check(kind, port, layout, doors)
    assert str(caught.value) == says
