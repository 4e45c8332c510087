"""`kimi-nb site new`: a file that says what was asked, and names every key."""

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

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


# Nodes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "members"),
    [
        ("10.1.2.11,10.1.2.12", [("n-0", "10.1.2.11"), ("n-1", "10.1.2.12")]),
        (
            " a=10.0.0.7 ,, dgx-02.example.org,",
            [("a", "10.0.0.7"), ("dgx-02", "dgx-02.example.org")],
        ),
        ("gpu,10.0.0.8,fd00::1", [("gpu", "gpu"), ("n-1", "10.0.0.8"), ("n-2", "fd00::1")]),
        ("a=b=c", [("a=b", "c")]),
        ("=x", [("", "x")]),
    ],
)
def test_nodes_with_and_without_names(words, members):
    assert site_file.nodes(words, "n") == [{"name": n, "address": a} for n, a in members]


@pytest.mark.parametrize("words", ["", " ", " , ,"])
def test_no_nodes(words):
    with pytest.raises(ParameterError) as caught:
        site_file.nodes(words, "n")
    assert str(caught.value) == (
        "--nodes: the nodes are wanted as ADDRESS,... or NAME=ADDRESS,..., such as "
        "10.1.2.11,10.1.2.12."
    )


# Values ---------------------------------------------------------------------------------------


def made(name: str, *pairs: str) -> dict:
    return site_file.new(load.site(name), "mine", site_file.nodes(NODES, "n"), pairs)


def test_the_values_of_a_site_are_the_example_s_with_other_nodes():
    assert made("a3") == {
        "name": "mine",
        "hardware": "a3",
        "transport": "ssh",
        "nic": "enp67s0f5",
        "nodes": [{"name": "n-0", "address": "10.1.2.11"}, {"name": "n-1", "address": "10.1.2.12"}],
        "ssh": {"user": "root", "port": 22},
        "paths": {"cache": "/root/.cache", "work": "/root/kimi"},
    }
    assert made("h200-slurm")["slurm"] == {
        "account": "kimi",
        "partition": "gpu",
        "cpu_partition": "common",
        "modules": ["anaconda3"],
    }


def test_pairs_set_values_as_yaml_reads_them():
    values = made(
        "a3", "ssh.port=23", "ssh.user=ops", "calibration=[a.yaml]", "network.no_proxy=[a=b, c]",
        "settings.flags.max-num-seqs=7", "ssh.user=me", "nic=", "nic=x0",
    )  # fmt: skip
    assert values["ssh"] == {"user": "me", "port": 23}
    assert values["calibration"] == ["a.yaml"] and values["nic"] == "x0"
    assert values["network"] == {"no_proxy": ["a=b", "c"]}
    assert values["settings"] == {"flags": {"max-num-seqs": 7}}
    assert load.site("a3").ssh.user == "root"
    assert list(made("a3", "api_key_env=MY_KEY")) == [*made("a3"), "api_key_env"]


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("ssh.user", "--set 'ssh.user': KEY=VALUE is wanted, such as ssh.user=ops."),
        ("=x", "--set '=x': KEY=VALUE is wanted, such as ssh.user=ops."),
        ("", "--set '': KEY=VALUE is wanted, such as ssh.user=ops."),
        ("name.of=x", "--set name.of: name is no table; name nodes with --nodes."),
        ("nodes.0.name=x", "--set nodes.0.name: nodes is no table; name nodes with --nodes."),
        ("ssh.port.x=1", "--set ssh.port.x: port is no table; name nodes with --nodes."),
        ("nic=[1", "--set nic: '[1' is not a value in YAML."),
        ("nic=a: b: c", "--set nic: 'a: b: c' is not a value in YAML."),
        ("nic=2001-99-99", "--set nic: '2001-99-99' is not a value in YAML."),
        ('nic=!!int ""', "--set nic: '!!int \"\"' is not a value in YAML."),
        ('nic=!!bool "x"', "--set nic: '!!bool \"x\"' is not a value in YAML."),
        ("ssh.port=x", "the site: 1 fault\n  ssh.port: found 'x': Input should be a valid integer"),
        (
            "nick=x",
            "the site: 1 fault\n  key 'nick' is not known; did you mean 'nic'? Allowed: "
            + ", ".join(schema.Site.model_fields)
            + ".",
        ),
    ],
)
def test_a_pair_that_is_refused(pair, told):
    with pytest.raises(ParameterError) as caught:
        made("a3", pair)
    assert str(caught.value) == told


def test_modules_of_conda_go_where_a_container_comes():
    pairs = ["slurm.container.runtime=apptainer"]
    assert made("h200-slurm", *pairs)["slurm"] == {
        "account": "kimi",
        "partition": "gpu",
        "cpu_partition": "common",
        "container": {"runtime": "apptainer"},
    }
    told = made("h200-slurm", *pairs, "slurm.modules=[x]", "slurm.qos=normal")["slurm"]
    assert (told["modules"], told["qos"]) == (["x"], "normal")
    ours = made("a3", "transport=slurm", "slurm.account=me", *pairs)
    assert ours["slurm"] == {"account": "me", "container": {"runtime": "apptainer"}}
    with pytest.raises(ParameterError, match="slurm: found 3: keys with values are wanted"):
        made("h200-slurm", "slurm=3")
    assert "modules" not in made("h200-slurm", *pairs, "slurm.cpus=7", "nic=slurm.modules")["slurm"]


@pytest.mark.parametrize(
    ("values", "pairs", "keys"),
    [
        (
            {"nic": "x", "slurm": {"account": "a", "qos": "q"}},
            ["slurm.account=me"],
            ["nic", "slurm.qos"],
        ),
        ({"paths": {"cache": "/c", "work": "/w"}}, [], ["paths.cache", "paths.work"]),
        ({"nic": "x", "name": "y", "ssh": {"user": "u"}}, ["nic=z"], []),
        ({"nic": "x"}, ["nic=a=b"], []),
        ({"nic": "x"}, ["nics=z", "x.nic=1"], ["nic"]),
        ({"slurm": {"container": {"runtime": "x"}}}, ["slurm.container.runtime=x=y"], []),
        ({"slurm": {"container": {}}}, ["slurm.containers=x", "slurm=1"], ["slurm.container"]),
    ],
)
def test_what_is_left_of_an_example(values, pairs, keys):
    assert site_file.left(values, pairs) == keys


# The text -------------------------------------------------------------------------------------

TOP = """\
# Your site: the only file that you have to edit. Every key is listed with its meaning.
# A key behind a '#' is off: remove the '#' to set it, and that of its table.
# Name the file with --site.

# The name of the site; confirm and --confirm repeat it.
name: mine

# The hardware of its nodes: a3, or the name of your own file.
hardware: h200

# How the nodes are reached: ssh, local (this machine), slurm (run on a login node), or kubernetes
# (by kubectl).
transport: slurm

# The nodes, in the order in which plans use them: name and address of each, and nic where it
# differs; with transport kubernetes only how many there are.
nodes:
  - {name: n-0, address: 10.1.2.11}
  - {name: n-1, address: 10.1.2.12}

# The network interface that connects the nodes (ip -br addr) (eth0).
#nic: eth0

# How the nodes are reached over SSH.
#ssh:
  # The account on the nodes (root).
#  user: root
  # The port of sshd (22).
#  port: 22
  # The path of a private key; without it the agent and the keys in ~/.ssh are tried. Keys only,
  # no passwords.
#  key_file: /home/me/.ssh/id_ed25519
"""
SLURM = """
# What sbatch is told.
slurm:
  # The account that sbatch charges.
  account: kimi
  # The partition of the jobs with accelerators (gpu).
  partition: gpu
  # The quality of service of the jobs with accelerators.
#  qos: normal
"""
IMAGE = """
  # The environment modules that the jobs load; none with container (anaconda3).
#  modules: [anaconda3]
  # The image in which the jobs run, instead of an environment made by conda.
  container:
    # What runs a job's programs in the image: apptainer, or pyxis (srun --container-image).
    runtime: pyxis
    # Another image than that of the hardware: its name in a registry, or a .sif or .sqsh file on
    # the shared file system.
#    image: /data/images/vllm-openai_v0.19.1.sif

# The cluster, and what its pods ask for.
#kubernetes:
  # The context of kubectl (kubectl config get-contexts).
#  context: a3-cluster
"""
END = """
# The name of the environment variable that holds the API key, never its value.
#api_key_env: KIMI_API_KEY

# Flags and environment variables of this site, for every engine.
settings: {flags: {seed: 1}}

# Files of kimi-nb calibrate --out, beside this one: what engines here said of their memory; those
# of other models are left out.
calibration: [a.yaml]
"""


def test_the_text_of_a_site():
    pairs = ["slurm.container.runtime=pyxis", "settings.flags.seed=1", "calibration=[a.yaml]"]
    text = site_file.text(made("h200-slurm", *pairs))
    assert text.startswith(TOP) and SLURM in text and IMAGE in text and text.endswith(END)
    cluster = site_file.text(made("a3-kubernetes"))
    assert "\n  weights: {storage_class: cephfs}\n" in cluster
    assert "\n#  resources: {rdma/hca: 1}\n" in cluster
    assert "\n  tolerations:\n" not in cluster
    assert "\n  tolerations: [{key: huawei.com/npu, effect: NoSchedule}]\n" in cluster
    assert "\n#  memory: 1500Gi\n" in cluster
    assert "them then (False).\n  host_network: false\n" in cluster
    assert "reads the metrics (False).\n#  pod_monitor: false\n" in cluster


def test_what_yaml_would_read_otherwise_is_quoted():
    text = site_file.text(made("h200-slurm", "slurm.time='1:00:00'", "slurm.account='007'"))
    assert "\n  time: '1:00:00'\n" in text and "\n  account: '007'\n" in text
    long = ["x" * 60 + str(at) for at in range(9)]
    text = site_file.text(made("a3", f"network.no_proxy=[{', '.join(long)}]"))
    assert f"\n  no_proxy: [{', '.join(long)}]\n" in text


def test_what_holds_without_a_key():
    for default, told in ((("a", "b"), " (a, b)"), ((), ""), (None, ""), (7, " (7)"), ((1.5,), "")):
        assert site_file._default(FieldInfo(default=default)) == told
    assert site_file._default(FieldInfo()) == ""


def test_meanings_of_all_keys():
    found = dict(site_file.meanings())
    assert len(found) == len(site_file.meanings())
    assert list(found)[:7] == [
        "name", "hardware", "transport", "nodes", "nodes.name", "nodes.address", "nodes.nic",
    ]  # fmt: skip
    assert found["ssh.port"] == "the port of sshd (22)"
    assert found["slurm.modules"].endswith("none with container (anaconda3)")
    assert found["network.no_proxy"] == "hosts and domains that are reached without the proxy"
    assert found["nodes.name"] == "the name of the node; folders and messages have it"
    assert found["slurm.container.image"].startswith("another image than that of the hardware")
    assert "kubernetes.weights" in found and "kubernetes.weights.claim" not in found
    assert "settings" in found and "ssh" not in found and "slurm.container" not in found
