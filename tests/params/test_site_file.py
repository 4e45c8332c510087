"""`kimi-nb site new`: a file that says what was asked, and names every key."""

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kimi_nb.cli.main import main
from kimi_nb.core.errors import ParameterError
from kimi_nb.params import load, schema, site_file

EXAMPLES = load.names("sites")
NODES = "10.1.2.11,10.1.2.12"


def turned_on(text: str) -> dict:
    """The file with every key that is off."""
    return yaml.safe_load(re.sub(r"^#( *\w+:)", r"\1", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_file_says_what_was_asked(name):
    example = load.site(name)
    values = site_file.new(example, "mine", site_file.nodes(NODES, "n"))
    text = site_file.text(values)
    assert yaml.safe_load(text) == values
    site = schema.Site.model_validate(values)
    assert [node.address for node in site.nodes] == NODES.split(",")
    # A quality of service is the cluster's own, and may be left out.
    slurm = example.slurm and example.slurm.model_copy(update={"qos": None, "cpu_qos": None})
    assert (site.name, site.paths, site.ssh, site.slurm) == (
        "mine",
        example.paths,
        example.ssh,
        slurm,
    )


@pytest.mark.parametrize("name", ["a3", "h200-slurm", "a3-kubernetes"])
def test_every_key_is_there_with_its_meaning(name):
    text = site_file.text(site_file.new(load.site(name), "mine", site_file.nodes(NODES, "n")))
    everything = turned_on(text)
    for key, meaning in site_file.meanings():
        table, _, last = key.rpartition(".")
        if table == "nodes":
            assert set(everything["nodes"][0]) == {"name", "address"}
            continue
        inner = everything
        for part in filter(None, table.split(".")):
            inner = inner[part]
        assert last in inner, key
        assert " ".join(meaning.split()[1:]) in " ".join(text.split()).replace("# ", "")
    # What an example shows is of the right kind.
    tables = {"ssh": "a3", "slurm": "h200-slurm", "kubernetes": "a3-kubernetes"}
    if name != "a3":
        others = [table for table, owner in tables.items() if owner not in (name, "a3")]
        schema.Site.model_validate({k: v for k, v in everything.items() if k not in others})


def test_a_container_for_the_jobs_takes_the_place_of_the_modules_of_conda():
    example, nodes = load.site("h200-slurm"), site_file.nodes(NODES, "n")
    pairs = ["slurm.container.runtime=pyxis"]
    values = site_file.new(example, "mine", nodes, pairs)
    assert "modules" not in values["slurm"]
    assert "slurm.container" not in site_file.left(values, pairs)
    more = [*pairs, "slurm.modules=[enroot]"]
    assert site_file.new(example, "mine", nodes, more)["slurm"]["modules"] == ["enroot"]


def test_lines_are_short():
    text = site_file.text(site_file.new(load.site("a3"), "mine", site_file.nodes(NODES, "n")))
    assert max(map(len, text.splitlines())) < 100


@given(st.text(max_size=40))
def test_any_words_make_nodes_or_are_refused(words):
    try:
        found = site_file.nodes(words, "a3")
        values = site_file.new(load.site("a3"), "mine", found)
    except ParameterError as error:
        assert str(error)
    else:
        assert yaml.safe_load(site_file.text(values)) == values


@pytest.mark.parametrize(
    "pairs, wanted",
    [
        (["slurm.acount=x"], "did you mean 'account'"),
        (["ssh.user"], "KEY=VALUE is wanted"),
        (["name.of=x"], "name is no table"),
        (["nodes.0.name=x"], "name nodes with --nodes"),
        (["paths.cache=here"], "paths.cache: found 'here': an absolute path is wanted"),
        (["nic=[1"], "is not a value in YAML"),
        (["api_key_env=sk-123456"], "what stands there is not shown"),
    ],
)
def test_wrong_values(pairs, wanted):
    with pytest.raises(ParameterError, match=re.escape(wanted)) as caught:
        site_file.new(load.site("h200-slurm"), "mine", site_file.nodes(NODES, "n"), pairs)
    assert "sk-123456" not in str(caught.value)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["site", "new", "--hw", "a3", "--nodes", NODES]
    assert main([*words, "--set", "ssh.user=ops"]) == 0
    site = load.site("./my-cluster.yaml")
    assert (site.name, site.hardware, site.ssh.user) == ("my-cluster", "a3", "ops")
    said = capsys.readouterr().out
    assert "--layout pd --variant" in said and said.endswith("--site ./my-cluster.yaml\n")
    assert "an example's values, look at them: nic, paths.cache" in said
    kept = (tmp_path / "my-cluster.yaml").read_text()
    assert main([*words, "--set", "ssh.user=root"]) == 2
    assert "is there already" in capsys.readouterr().err
    assert (tmp_path / "my-cluster.yaml").read_text() == kept
    assert main([*words, "--force"]) == 0 and load.site("./my-cluster.yaml").ssh.user == "root"
    assert main([*words, "--out", "gone/x.yaml"]) == 2
    assert main(["site", "new", "--hw", "a3", "--nodes", " , "]) == 2
    assert "--nodes: the nodes are wanted" in capsys.readouterr().err
    assert main(["site", "new", "--hw", "a3", "--slurm", "--nodes", NODES]) == 2
    assert "under SLURM" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my-cluster.yaml"]


@pytest.mark.parametrize("hardware", load.names("hardware"))
@pytest.mark.parametrize("count", [1, 4])
def test_the_example_that_it_names_can_be_planned(hardware, count, tmp_path, capsys):
    """Also for hardware of which nobody has published a recipe: what to do next is named."""
    nodes = ",".join(f"10.1.2.{10 + at}" for at in range(count))
    out = str(tmp_path / "mine.yaml")
    assert main(["site", "new", "--hw", hardware, "--nodes", nodes, "--out", out]) == 0
    words = capsys.readouterr().out.splitlines()[-1].partition("kimi-nb ")[2].split()
    assert words[0] in ("plan", "list") and hardware in words
    assert main([one.rstrip(".") for one in words]) == 0
