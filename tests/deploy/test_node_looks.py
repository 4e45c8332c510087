"""Looking at nodes, without a site: who tries whom, what a script says, what becomes of it."""

from __future__ import annotations

import pytest

from kimi_nb.core.errors import ParameterError
from kimi_nb.deploy import node_looks
from kimi_nb.deploy.local import LocalNodes
from kimi_nb.deploy.node_answers import Answer
from kimi_nb.params import load, schema
from kimi_nb.service import prerequisites
from kimi_nb.service.prerequisites import Look, Seen

A2, A3 = load.hardware("a2"), load.hardware("a3")


def asked(name="disk", argv=("true",), needs="tool", pattern="", broken=""):
    return Look(name, "what", argv, "OK", pattern, needs, "", broken)


class Silent:
    """Nodes that give no answer."""

    def __init__(self) -> None:
        self.unreachable: dict[str, str] = {}

    def look(self, texts):
        return {name: Answer((), "no answer: the connection ended") for name in texts}


@pytest.mark.parametrize("number", [2, 3, 5, 20])
def test_each_device_and_each_pair_of_nodes_is_tried_both_ways(number):
    names = [f"n{at}" for at in range(number)]
    checks = {"npu-ping": A3.checks["npu-ping"]}
    tried = [
        ((node, device), (peer, other))
        for node, _, device, peer, other in node_looks._pairs(names, checks, 16)
    ]
    devices = {(name, device) for name in names for device in range(16)}
    assert {one for one, _ in tried} == devices == {other for _, other in tried}
    assert {(one[0], other[0]) for one, other in tried} == {
        (one, other) for one in names for other in names if one != other
    }
    assert len(tried) == len(set(tried)) == number * (16 + number - 2)


def test_the_ping_is_that_of_the_documents():
    for hardware, ping, told in ((A2, "-ping", "-ip"), (A3, "-hccs_ping", "-vnic")):
        check = hardware.checks["npu-ping"]
        one = prerequisites.link(check, "npu-ping", 3, "h2", 3, "192.0.2.7")
        assert one.argv == ("hccn_tool", "-i", "3", ping, "-g", "address", "192.0.2.7")
        (address,) = prerequisites.addresses(hardware, [3]).values()
        assert address.argv == ("hccn_tool", "-i", "3", told, "-g")
        text = "vnic link status: UP\nvnic ipaddr:192.168.3.4\nvnic netmask:255.255.0.0"
        assert prerequisites.address_in(prerequisites.verdict(address, 0, text)) == "192.168.3.4"
        assert not prerequisites.address_in(prerequisites.verdict(address, 0, "no address"))


@pytest.mark.parametrize("name", sorted({*load.names("hardware")} - {"a2", "a3"}))
def test_no_other_hardware_has_links_that_a_document_tests(name):
    assert not prerequisites.addresses(load.hardware(name), [0])
    assert node_looks.links(Silent(), load.hardware(name), ["a", "b"]) == {}


@pytest.mark.parametrize(
    "code, text, status, down",
    [
        (0, "This pkt ping success", "pass", False),
        (0, "3 packets transmitted, 3 received, 0.00% packet loss", "pass", False),
        (0, "3 packets transmitted, 0 received, 100.00% packet loss", "fail", True),
        (0, "3 packets transmitted, 2 received, 33.3% packet loss", "fail", True),
        (0, "10.0% packet loss", "fail", True),
        (1, "recv time out seq=0", "fail", True),
        (1, "Invalid option -hccs_ping", "fail", False),
        (127, "hccn_tool: command not found", "fail", False),
    ],
)
def test_what_a_ping_says(code, text, status, down):
    """A link is down where the tool says so; what it does not know says nothing of a link."""
    one = prerequisites.link(A3.checks["npu-ping"], "npu-ping", 0, "h2", 0, "192.0.2.7")
    seen = prerequisites.verdict(one, code, text)
    found, unknown = node_looks.diagnoses({"h1": [seen]})
    assert seen.status == status
    assert [(each.node, each.kind) for each in found] == [("h1", "link-down")] * down
    assert len(unknown) == (status == "fail" and not down)


def test_a_link_wants_an_address():
    check = A3.checks["npu-ping"].model_dump()
    for change in ({"address": None}, {"each": "device"}):
        with pytest.raises(ValueError, match="each link and an address go together"):
            schema.Check(**{**check, **change})


def test_a_script_says_what_each_command_came_to(tmp_path):
    """Real bash: codes, long and strange output, a program that is missing, one that hangs."""
    looks = [
        asked(argv=("printf", "a\tb'\n$(false)\"")),
        asked(argv=("sh", "-c", "echo oops >&2; exit 3")),
        asked(argv=("seq", "1", "9999"), pattern="^7$"),
        asked(argv=("no-such-program",)),
        asked(argv=("no-such-program",), needs="node"),
        asked(argv=("sh", "-c", "read word; echo none: $word")),
    ]
    found = node_looks._ask(LocalNodes(), A3, {"here": looks})["here"]
    assert [one.status for one in found] == ["pass", "fail", "pass", "fail", "skipped", "pass"]
    assert found[0].text == "a\tb'\n$(false)\""
    assert found[1].found == "exit code 3: oops" and found[5].found == "none:"
    assert "no-such-program: command not found" in found[3].found


def test_what_takes_too_long_is_ended_and_the_rest_is_told(monkeypatch):
    # bash counts whole seconds of the clock, so that a start can already be second 1.
    monkeypatch.setattr(node_looks, "_EACH", 3)
    monkeypatch.setattr(node_looks, "_ALL", 2)
    looks = [asked("link 0", ("sleep", "30"), broken="timeout"), asked("link 1", ("true",))]
    first, second = node_looks._ask(LocalNodes(), A3, {"here": looks})["here"]
    assert (first.status, first.found) == ("fail", "no answer within 3 s")
    assert second.status == "skipped" and "no time was left" in second.found
    assert len(node_looks.diagnoses({"here": [first, second]})[0]) == 1


def test_the_driver_s_programs_are_found_where_a_container_gets_them(tmp_path):
    assert "/usr/local/Ascend/driver/tools" in node_looks._tools(A3)
    assert "/usr/local/Ascend/driver/tools" in node_looks._text(A3, [asked()])
    assert node_looks._tools(load.hardware("mi300x")) == []


def test_our_script_travels_with_the_look():
    words = node_looks._carried(["python3", prerequisites.CHECK_WEIGHTS, "--room", "1", "/"])
    assert words[:2] == ["python3", "-c"] and words[-3:] == ["--room", "1", "/"]
    assert "def room(" in words[2]


def test_a_node_without_an_answer_fails_each_check():
    (seen,) = node_looks._ask(Silent(), A3, {"h1": [asked("driver")]})["h1"]
    (row,) = node_looks._rows("h1", [seen])
    assert row.status == "fail" and "the connection ended" in row.found
    assert "Log in on h1" in row.help


def test_one_row_for_each_check():
    def saw(*found: tuple[str, str]) -> list[Seen]:
        return [
            Seen(asked(f"link {number}"), status, said)
            for number, (status, said) in enumerate(found)
        ]

    def row(*found: tuple[str, str]):
        (one,) = node_looks._rows("h1", saw(*found))
        return one.status, one.found

    up, down = ("pass", "UP"), ("fail", "DOWN")
    assert row(up) == ("pass", "UP") and row(up, up) == ("pass", "2 of 2")
    assert row(up, down, up) == ("fail", "1: DOWN")
    assert row(down, down) == ("fail", "DOWN (2 of 2)")
    assert row(*[down] * 5, up)[1] == "0: DOWN; 1: DOWN; 2: DOWN; and 2 more"
    assert row(up, ("skipped", "why")) == ("pass", "1 of 2; not looked: why")
    assert row(("skipped", "why"), ("skipped", "why")) == ("skipped", "why (2 of 2)")


def test_a_key_that_is_not_there():
    site = load.site("a3")
    site = site.model_copy(update={"ssh": site.ssh.model_copy(update={"key_file": "/no/key"})})
    with pytest.raises(ParameterError, match="ssh.key_file /no/key"):
        node_looks.of_site(A3, site, load.model("k2.5").weights["w4a8"], "pd")
