"""Parameter files: what is read, and how each mistake is answered."""

from __future__ import annotations

import pytest

from kimi_nb.core import data_files, paths
from kimi_nb.core.errors import KimiError, ParameterError, PlanError
from kimi_nb.params import load
from kimi_nb.plan import build

# Each line holds nine times the one before: 9 ** 9 leaves in a few hundred characters.
LAUGHS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
# The same by merge keys, which grow while the file is read.
MERGES = "a0: &a0 {x: 1, y: 2, z: 3}\n" + "".join(
    f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)


def fault(call, *args, **named) -> str:
    """The message of the error that a call ends in."""
    with pytest.raises(KimiError) as caught:
        call(*args, **named)
    return str(caught.value)


def test_everything_that_ships_is_valid():
    for name in load.names("hardware"):
        chip = load.hardware(name)
        assert chip.name == name and chip.recipes_of in load.names("hardware")
    for name in load.names("models"):
        model = load.model(name)
        assert model.name == name
        for recipe in model.recipes:
            assert recipe.weights in model.weights
            assert recipe.hardware in load.names("hardware")
            assert set(recipe.clients) <= set(model.clients)
            assert recipe.source.document in data_files.facts("check/documents")
            for scenario in recipe.scenarios.values():
                assert scenario.source.document in data_files.facts("check/documents")
    hardware = {load.site(name).hardware for name in load.names("sites")}
    assert hardware == set(load.names("hardware"))


def test_sites_have_documentation_addresses():
    """RFC 5737: nobody's machines; a local one has those of this machine's loopback."""
    ranges = ("192.0.2.", "198.51.100.", "203.0.113.")
    for name in load.names("sites"):
        site = load.site(name)
        if site.kubernetes:  # its nodes have no addresses, and nobody's cluster is named
            assert site.kubernetes.context.endswith("-cluster")
            continue
        mine = ("127.",) if site.transport == "local" else ranges
        assert all(node.address.startswith(mine) for node in site.nodes)


def test_a_site_s_paths_may_begin_with_the_project(tmp_path):
    site = load.site("cpu")
    assert site.paths.models == f"{paths.root()}/params/tiny"
    assert site.paths.engine == f"{paths.root()}/.engine"
    text = (paths.root() / "params" / "sites" / "cpu.yaml").read_text()
    path = tmp_path / "mine.yaml"
    for old, new, fault_of in (
        ('"{root}/.engine"', '"/opt/{root}"', "paths.engine"),
        ('"{root}/.engine"', '"{rot}/engine"', "paths.engine"),
        ('"{root}/.engine"', '"{root}engine"', "paths.engine"),
        ('"{root}/.engine"', "7", "paths.engine"),
        ("\nname: local", '\nname: "{root}"', "name"),
    ):
        path.write_text(text.replace(old, new))
        assert fault_of in fault(load.site, str(path))
    path.write_text("name: x\npaths: no\n")
    assert "paths" in fault(load.site, str(path))


@pytest.mark.parametrize(
    "check, says",
    [
        ("pattern: version, least: 5", "least: a pattern with one group is wanted"),
        ("pattern: '(a)(b)', least: 5", "least: a pattern with one group is wanted"),
        ("pattern: '(', least: 5", "pattern: no regular expression"),
        ("pattern: '['", "pattern: no regular expression"),
        ("pattern: 'a{99999999999999999999}'", "pattern: no regular expression"),
        ("pattern: '(a)', least: 0", "mine.least: found 0: a whole number from 1 on is wanted"),
        ("pattern: '(a)', least: newest", "found 'newest': a whole number from 1 on is wanted"),
    ],
)
def test_a_check_with_a_least_number(check, says, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "extends: b300\nname: mine\n"
        f"checks: {{mine: {{title: A, argv: [a], expect: b, {check}}}}}\n"
    )
    assert says in fault(load.hardware, str(path))


def test_unknown_name_says_what_there_is():
    text = fault(load.hardware, "a33")
    assert "'a33'" in text and "did you mean 'a3'" in text and "mi300x" in text
    assert "k2-thinking" in fault(load.model, "k9")


@pytest.mark.parametrize(
    "kind, given, name",
    [
        ("hardware", "A3", "a3"),
        ("hardware", "atlas 800 a3 (16 NPUs of 64 GB)", "a3"),
        ("hardware", "Atlas 800 A3", "a3"),
        ("hardware", "DGX-H200", "h200"),
        ("model", "K2.5", "k2.5"),
        ("model", "kimi-k2.5", "k2.5"),
        ("model", " Kimi K2.5 ", "k2.5"),
        ("model", "moonshotai/Kimi-K2.5", "k2.5"),
        ("model", "moonshotai/kimi-k2.6", "k2.6"),
        ("model", "Kimi_K2_Thinking", "k2-thinking"),
        ("model", "moonshotai/Kimi-K2-Thinking", "k2-thinking"),
        ("site", "A3", "a3"),
    ],
)
def test_names_as_people_write_them(kind, given, name):
    assert getattr(load, kind)(given) is getattr(load, kind)(name)


def test_no_two_files_have_a_spelling_in_common():
    """Else which one is meant would be a matter of chance."""
    for kind in ("hardware", "models", "sites"):
        by_name = {name: load.spellings(kind, name) for name in load.names(kind)}
        every = [one for spellings in by_name.values() for one in spellings]
        assert len(every) == len(set(every)), kind


@pytest.mark.parametrize(
    "kind, given, near",
    [
        ("model", "kimi-k2.55", "k2.5"),
        ("model", "Kimi-K2.7", "k2."),
        ("model", "moonshotai/Kimi-K2-Thinkin", "k2-thinking"),
        # Other weights than those that each recipe of the model serves: a suggestion, no alias.
        ("model", "nvidia/Kimi-K2.5-NVFP4", "k2.5"),
        ("hardware", "GB-200", "gb200"),
        ("hardware", "Atlas A3", "a3"),
    ],
)
def test_suggestions_are_names_of_the_right_list(kind, given, near):
    assert f"did you mean '{near}" in fault(getattr(load, kind), given)


def test_a_path_stays_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "no such file" in fault(load.model, "models/kimi-k2.5")
    (tmp_path / "A3").mkdir()
    assert load.hardware("A3").name == "a3"
    (tmp_path / "moonshotai").mkdir()
    (tmp_path / "moonshotai" / "Kimi-K2.5").write_text("name: mine\n")
    assert "moonshotai/Kimi-K2.5" in fault(load.model, "moonshotai/Kimi-K2.5")


@pytest.mark.parametrize(
    "old, new, wanted",
    [
        ("nic: ", "nics: ", "key 'nics' is not known; did you mean 'nic'? Allowed: name, hardware"),
        (
            "address: 192.0.2.11",
            "adress: 192.0.2.11",
            "nodes.0: key 'adress' is not known; did you mean 'address'?",
        ),
        ("paths:", "paths: 3\nnothing:", "paths: found 3: keys with values are wanted"),
    ],
)
def test_what_is_allowed_is_said(site_file, old, new, wanted):
    assert wanted in fault(load.site, site_file((old, new)))


def test_a_secret_in_the_place_of_a_name_is_not_shown(site_file):
    told = fault(
        load.site,
        site_file(("name: a3-example", "name: a3-example\napi_key_env: sk-abcdef123456")),
    )
    assert "NAME of an environment variable" in told and "abcdef" not in told


def test_missing_file(tmp_path):
    assert "no such file" in fault(load.site, str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("a: [1, 2", "line"),
        ("a: b: c", "line 1"),
        ("\tname: x", "line 1"),
        ("- 1\n- 2", "list"),
        ("", "found nothing"),
        ("name: x\nname: y", "given twice"),
        ("{[1]: 2}", "plain word"),
        ("a: " + "[" * 100_000, "64 levels"),
        ("- " * 5000 + "x", "64 levels"),
        ("just words", "found 'just words'"),
        ("name: 2024-99-99", "quotes"),
        ("name: !!int abc", "quotes"),
        ("a: &a [*a]", "unfold"),
        (LAUGHS, "unfold"),
        (MERGES, "more than 20000 keys"),
        ("a: &a {<<: *a}", "merges itself"),
        ("name: " + "9" * 5000, ""),
        ("name: \0", ""),
    ],
)
def test_malformed_yaml(tmp_path, text, wanted):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    message = fault(load.site, str(path))
    assert str(path) in message and wanted in message
    assert len(message.splitlines()) < 25


def test_not_text_and_too_large(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00name")
    assert "UTF-8" in fault(load.site, str(path))
    path.write_text("#" * (5 << 20))
    assert "4 MB" in fault(load.site, str(path))


@pytest.mark.parametrize(
    "old, new, wanted",
    [
        ("transport: ssh", "transport: carrier-pigeon", ["transport", "'carrier-pigeon'", "slurm"]),
        ("nic: enp67s0f5", "nick: enp67s0f5", ["nick", "not known"]),
        ("192.0.2.12", '"fe80::1%a\\ntouch X\\n#"', ["nodes.1.address"]),
        ("192.0.2.12", "fe80::1%eth0", ["nodes.1.address"]),
        ("name: a3-1", "name: install", ["nodes.1.name", "every bundle"]),
        ("name: a3-1", "name: plan.json", ["nodes.1.name", "every bundle"]),
        ("hardware: a3\n", "", ["hardware", "missing"]),
        ("192.0.2.12", "192.0.2.11", ["nodes.1.address", "already", "nodes.0"]),
        ("name: a3-1", "name: a3-0", ["nodes.1.name", "already"]),
        ("192.0.2.12", "141.xx.xx.2", ["nodes.1.address", "141.xx.xx.2", "192.0.2.11"]),
        ("192.0.2.12", "300.1.1.1", ["nodes.1.address"]),
        ("192.0.2.12", '"192.0.2.12; reboot"', ["nodes.1.address", "reboot"]),
        ("nic: enp67s0f5", 'nic: "eth0$(id)"', ["nic", "eth0$(id)"]),
        ("cache: /root/.cache", 'cache: "/root/`id`"', ["paths.cache", "'`'"]),
        ("cache: /root/.cache", "cache: cache", ["paths.cache", "absolute"]),
        ("name: a3-example", 'name: "a;b"', ["name", "a;b"]),
        ("ssh: {user: root, port: 22}", "ssh: {user: root, port: 70000}", ["ssh.port", "70000"]),
        ("nic: enp67s0f5", "nic: enp67s0f5\napi_key_env: sk-1234567890", ["api_key_env", "NAME"]),
        ("transport: ssh", "transport: slurm", ["slurm"]),
    ],
)
def test_site_mistakes(site_file, old, new, wanted):
    path = site_file((old, new))
    message = fault(load.site, path)
    assert path in message
    for word in wanted:
        assert word in message
    assert len(message.splitlines()) <= 12


def test_all_faults_at_once(site_file):
    path = site_file(("nic: enp67s0f5", "nick: x"), ("transport: ssh", "transport: x"))
    assert "2 faults" in fault(load.site, path)


def test_a_user_file_extends_ours(tmp_path):
    path = tmp_path / "a3-big.yaml"
    path.write_text(
        "extends: a3\nname: a3-big\ntitle: A3 with more memory\ndevices: {memory_gb: 128}\n"
    )
    chip = load.hardware(str(path))
    assert (chip.name, chip.recipes_of) == ("a3-big", "a3")
    assert (chip.devices.count, chip.devices.memory_gb) == (16, 128)
    plan = build.plan("k2.5", str(path), "pd")
    assert plan.hardware == "a3-big" and len(plan.engines) == 36


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("network_env: {FOO: '$(id)'}", "network_env.FOO"),
        ("installs: {../../evil: []}", "installs"),
        ("host_tuning: {governor: 'a;b'}", "governor"),
        ("host_tuning: {sysctl: {'vm.x;reboot': 1}}", "sysctl"),
        ("devices: {count: 1000000000000}", "devices.count"),
        ("container: {image: ''}", "container.image"),
        ("container: {image: '-x'}", "container.image"),
    ],
)
def test_hardware_mistakes(tmp_path, text, wanted):
    path = tmp_path / "mine.yaml"
    path.write_text(f"extends: a3\nname: mine\n{text}\n")
    assert wanted in fault(load.hardware, str(path))


@pytest.mark.parametrize(
    "old, new, wanted",
    [
        ("weights: w4a8", "weights: w8a8", "'w8a8' is not one of w4a8"),
        ("clients: [bench]", "clients: [stress]", "'stress' is not one of bench"),
        ("heads: 64", "headz: 64", "architecture.heads"),
        ("heads: 64", "heads: 0", "architecture.heads"),
        ('vllm: ">=0.18.0"', "vllm: banana", "range of versions"),
        ("    router: upstream\n", "", "layout pd needs a router"),
        ("id: Eco-Tech/Kimi-K2.6-W4A8", "id: '$(id)'", "weights.w4a8.id"),
    ],
)
def test_model_mistakes(tmp_path, old, new, wanted):
    text = (paths.root() / "params" / "models" / "k2.6.yaml").read_text()
    assert old in text
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new))
    assert wanted in fault(load.model, str(path))


@pytest.mark.parametrize(
    "given",
    [
        "/dev/zero",
        "/dev/null",
        "/",
        "~nouser-at-all/x.yaml",
        "./a;b.yaml",
        "./$(id).yaml",
        "/" + "x" * 300 + ".yaml",
    ],
)
def test_paths_that_are_no_files(given):
    assert len(fault(load.site, given)) < 600


def test_a_directory_with_spaces_and_other_letters(tmp_path):
    folder = tmp_path / "mein Ordner \u6d4b\u8bd5"
    folder.mkdir()
    (folder / "site.yaml").write_text((paths.root() / "params/sites/a3.yaml").read_text())
    assert load.site(str(folder / "site.yaml")).name == "a3-example"


def test_values_of_a_kind_that_is_no_json(site_file):
    for text in ("2024-01-01", "!!binary aGk=", ".nan", ".inf", "!!set {a}"):
        path = site_file(("nic: enp67s0f5", f"nic: x0\nsettings: {{flags: {{seed: {text}}}}}"))
        fault(build.plan, "k2.5", "a3", "single", site=path)


def test_ipv6_addresses_have_brackets_in_urls(site_file):
    path = site_file(("192.0.2.11", "'2001:db8::1'"))
    plan = build.plan("k2.5", "a3", "single", site=path)
    assert plan.url == "http://[2001:db8::1]:8088"
    assert plan.engines[0].argv[plan.engines[0].argv.index("--host") + 1] == "2001:db8::1"


def test_prose_stays_on_its_line(tmp_path):
    """A title stands in comments of scripts."""
    path = tmp_path / "mine.yaml"
    path.write_text('extends: a3\nname: mine\ntitle: "A3\\nreboot"\n')
    assert "title" in fault(load.hardware, str(path))


def test_extending_nothing_and_itself(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("extends: a9\nname: mine\n")
    assert "a9" in fault(load.hardware, str(path))
    path.write_text("extends: mine\nname: mine\n")
    assert "extends" in fault(load.hardware, str(path))


def test_site_of_other_hardware():
    with pytest.raises(PlanError, match="a2.*a3"):
        build.plan("k2.5", "a3", "pd", site="a2")


def test_site_with_too_few_nodes():
    with pytest.raises(PlanError, match=r"needs 6 nodes \(prefill 2 x 1 \+ decode 1 x 4.*has 4"):
        build.plan("k2.5", "a3", "pd", pairs=["decode.nodes=4", "decode.dp=64"])


def test_variables_of_a_site_are_checked(site_file):
    path = site_file(("nic: enp67s0f5", "nic: enp67s0f5\nsettings: {env: {FLAG: true}}"))
    with pytest.raises(ParameterError, match=r"FLAG.*quotes"):
        build.plan("k2.5", "a3", "single", site=path)
    path = site_file(("nic: enp67s0f5", "nic: x0\nsettings: {env: {FLAG: 'a;b'}}"))
    with pytest.raises(ParameterError, match="';' is not allowed"):
        build.plan("k2.5", "a3", "single", site=path)


def test_site_settings_have_their_layer(site_file):
    path = site_file(("nic: enp67s0f5", "nic: x0\nsettings: {flags: {max-num-seqs: 7}}"))
    plan = build.plan("k2.5", "a3", "single", site=path)
    rows = {row.name: row for row in plan.explain()}
    assert (rows["max-num-seqs"].value, rows["max-num-seqs"].layer) == (7, "site")
    assert rows["seed"].layer == "recipe" and rows["seed"].source == "ascend-k2.5 5.1"
    assert rows["HCCL_OP_EXPANSION_MODE"].layer == "hardware"
    assert rows["quantization"].layer == "model"


@pytest.mark.parametrize(
    "paths_, key, other",
    [
        ("{cache: /c, models: /data/models, work: /data/models/kimi}", "work", "models"),
        ("{cache: /c, models: /data/models, work: /data/models}", "work", "models"),
        ("{cache: /data/cache/, work: /data/x/../cache/kimi}", "work", "cache"),
        ("{cache: /c, engine: /opt/vllm, work: /opt/vllm/kimi}", "work", "engine"),
        ("{cache: /c, models: /opt/vllm/m, engine: /opt/vllm, work: /w}", "models", "engine"),
        ("{cache: /c, models: /m, engine: /m/vllm, work: /w}", "engine", "models"),
    ],
)
def test_folders_that_lie_in_each_other_are_refused(site_file, paths_, key, other):
    path = site_file(("{cache: /root/.cache, work: /root/kimi}", paths_))
    told = fault(load.site, path)
    assert path in told and f"paths: {key}: " in told and f"paths.{other}" in told
    assert "a folder of its own" in told


@pytest.mark.parametrize(
    "paths_",
    [
        "{cache: /w/cache, models: /w/models, engine: /w/engine, work: /w}",
        "{cache: /c, models: /c/hub/models, work: /work}",
        "{cache: /data/models, models: /data/models, work: /data/models2}",
        "{cache: /p/c, models: /p/m, project: /p, work: /p}",
    ],
)
def test_folders_that_may_lie_in_each_other(site_file, paths_):
    load.site(site_file(("{cache: /root/.cache, work: /root/kimi}", paths_)))


def test_a_file_of_one_s_own_without_its_ending_is_pointed_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "./mine.yaml)" in fault(load.site, "my-cluster")
    (tmp_path / "my-cluster.yaml").write_text("name: my-cluster\n")
    assert "of that name: ./my-cluster.yaml." in fault(load.site, "my-cluster")


def test_nodes_with_faults_are_not_called_missing(site_file):
    path = site_file(("192.0.2.12", "300.1.1.1"))
    assert "at least 1" not in fault(load.site, path)
    with pytest.raises(ParameterError, match="--set of its own"):
        build.plan("k2.5", "a3", "single", pairs=["max-num-seqs=32,foo=1"])
