"""How parameter files are found, read, laid over others and checked, at each of its steps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field

from kimi_nb.core import paths
from kimi_nb.core.errors import ParameterError
from kimi_nb.params import load, schema

PARAMS = paths.root() / "params"


def refused(call, *args) -> str:
    with pytest.raises(ParameterError) as caught:
        call(*args)
    return str(caught.value)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Another project's parameter files: the folders are there, and nothing in them."""
    for kind in ("hardware", "models", "sites", "recipes"):
        (tmp_path / "project" / "params" / kind).mkdir(parents=True)
    monkeypatch.setattr(paths, "root", lambda: tmp_path / "project")
    forget()
    yield tmp_path / "project" / "params"
    forget()


def forget() -> None:
    for cached in (load._ours, load._spelt, load._organisations, load.features):
        cached.cache_clear()


def site(**more: Any) -> dict[str, Any]:
    """The keys of a site that is valid."""
    node = {"name": "n0", "address": "192.0.2.1"}
    base = {"name": "mine", "hardware": "a3", "transport": "ssh", "nodes": [node]}
    return base | {"paths": {"cache": "/c", "work": "/w"}} | more


def write(path: Path, values: object) -> str:
    path.write_text(json.dumps(values))
    return str(path)


# Names ----------------------------------------------------------------------------------------


def test_names_are_those_of_files_that_stand_for_themselves(project):
    for name in ("b.yaml", "a.yaml", "_base.yaml", ".hidden.yaml", "a.json", "yaml", "a.b.yaml"):
        (project / "models" / name).write_text("")
    assert load.names("models") == ["a", "a.b", "b"]
    assert load.names("sites") == []


@pytest.mark.parametrize(
    ("kind", "given", "name"),
    [
        ("hardware", "a3", "a3"),
        ("hardware", "A3", "a3"),
        ("hardware", " Atlas__800 \t A3 ", "a3"),
        ("hardware", "nothing", "nothing"),
        ("hardware", "moonshotai/a3", "moonshotai/a3"),
        ("models", "moonshotai/Kimi-K2.5", "k2.5"),
        ("models", "MoonshotAI/kimi_k2.5", "k2.5"),
        ("models", "nobody/Kimi-K2.5", "nobody/Kimi-K2.5"),
        ("models", "moonshotai/", "moonshotai/"),
        ("models", "Kimi K2.5", "k2.5"),
        ("sites", "A3_Many", "a3-many"),
        ("sites", "Kimi", "Kimi"),
        ("models", None, None),
        ("models", 7, 7),
    ],
)
def test_a_spelling_of_a_name(here, kind, given, name):
    assert load.canonical(kind, given) == name


def test_a_file_of_one_s_own_is_no_spelling(here):
    (here / "moonshotai").mkdir()
    (here / "moonshotai" / "Kimi-K2.5").touch()
    (here / "A3").touch()
    assert load.canonical("models", "moonshotai/Kimi-K2.5") == "moonshotai/Kimi-K2.5"
    assert load.canonical("models", "moonshotai/Kimi-K2.6") == "k2.6"
    assert load.canonical("hardware", "A3") == "a3"


def test_how_a_name_may_be_written():
    assert load.spellings("hardware", "a3") == (
        "a3",
        "atlas-800-a3-(16-npus-of-64-gb)",
        "atlas-800-a3",
    )
    assert load.spellings("models", "k2.5") == ("k2.5", "kimi-k2.5")
    assert load.spellings("sites", "A3_Many") == ("a3-many",)


def test_organisations_are_those_of_weights(project):
    (project / "models" / "m.yaml").write_text((PARAMS / "models" / "tiny-llama.yaml").read_text())
    assert load._organisations() == frozenset()
    forget()
    text = (project / "models" / "m.yaml").read_text()
    (project / "models" / "m.yaml").write_text(
        text.replace("    id: tiny-llama", "    id: Some_Org/tiny/llama")
    )
    assert load._organisations() == {"some-org"}
    assert load.canonical("models", "Some-Org/Tiny Llama") == "m"


# Files over files -----------------------------------------------------------------------------


def test_mappings_are_merged_and_all_else_is_replaced():
    base = {"a": 1, "b": {"c": 2, "l": [1]}, "t": {"x": 1}, "s": 1}
    over = {"b": {"d": 3, "l": [2]}, "t": 5, "s": {"y": 1}, "new": {"z": 1}, "a": None}
    assert load.merge(base, over) == {
        "a": None,
        "b": {"c": 2, "l": [2], "d": 3},
        "t": 5,
        "s": {"y": 1},
        "new": {"z": 1},
    }
    assert base == {"a": 1, "b": {"c": 2, "l": [1]}, "t": {"x": 1}, "s": 1}


def test_a_file_extends_one_beside_it_or_one_of_ours(here):
    (here / "a3.yaml").write_text("name: beside\nnic: x\n")
    write(here / "mine.yaml", {"extends": "a3", "nic": "y"})
    assert load._extended(here / "mine.yaml", "sites") == {"name": "beside", "nic": "y"}
    write(here / "other.yaml", {"extends": "a2", "nic": "z"})
    found = load._extended(here / "other.yaml", "sites")
    assert (found["hardware"], found["nic"]) == ("a2", "z") and "extends" not in found
    # One that has the name of what it extends means ours.
    write(here / "a3.yaml", {"extends": "a3", "nic": "w"})
    found = load._extended(here / "a3.yaml", "sites")
    assert (found["hardware"], found["nic"]) == ("a3", "w")


def test_hardware_that_extends_another_is_like_it(project):
    folder = project / "hardware"
    write(folder / "_base.yaml", {"vendor": "x"})
    write(folder / "a.yaml", {"extends": "_base", "name": "a"})
    write(folder / "b.yaml", {"extends": "a", "name": "b"})
    write(folder / "c.yaml", {"extends": "b", "name": "c"})
    write(folder / "d.yaml", {"extends": "c", "name": "d", "like": "z"})
    write(folder / "e.yaml", {"extends": "d", "name": "e"})
    likes = {
        name: load._extended(folder / f"{name}.yaml", "hardware").get("like") for name in "abcde"
    }
    assert likes == {"a": None, "b": "a", "c": "a", "d": "z", "e": "z"}
    write(project / "models" / "a.yaml", {"name": "a"})
    write(project / "models" / "b.yaml", {"extends": "a"})
    assert load._extended(project / "models" / "b.yaml", "models") == {"name": "a"}


def test_five_files_over_each_other_and_no_more(here):
    for at in range(7):
        write(here / f"f{at}.yaml", {"extends": f"f{at - 1}", "own": at} if at else {"name": "x"})
    assert load._extended(here / "f5.yaml", "sites") == {"name": "x", "own": 5}
    told = refused(load._extended, here / "f6.yaml", "sites")
    assert told == f"{here}/f1.yaml: extends: more than 4 files deep; does it extend itself?"


@pytest.mark.parametrize("base", [7, "", "../a3", "a/b", "x" * 65, ["a3"], True])
def test_what_can_be_extended_is_a_name(here, base):
    path = write(here / "mine.yaml", {"extends": base})
    assert refused(load.site, "./mine.yaml").startswith("mine.yaml: extends: ")
    assert refused(load._extended, Path(path), "sites") == (
        f"{path}: extends: the name of a file beside this one, or of one of ours is wanted "
        f"({', '.join(load.names('sites'))}), without .yaml."
    )


def test_what_is_extended_has_to_be_there(here, project):
    write(project / "sites" / "ours.yaml", {"extends": "ours"})
    write(project / "sites" / "_base.yaml", {})
    path = here / "mine.yaml"
    write(path, {"extends": "our"})
    told = "extends: base 'our' is not known; did you mean 'ours'? Allowed: ours."
    assert refused(load._extended, path, "sites") == f"{path}: {told}"
    ours = project / "sites" / "ours.yaml"
    assert refused(load._extended, ours, "sites") == (
        f"{ours}: extends: base 'ours' is not known; did you mean 'ours'? Allowed: ours."
    )
    write(path, {"extends": "_base", "a": 1})
    assert load._extended(path, "sites") == {"a": 1}
    write(project / "sites" / "A.b_Z-9.yaml", {"b": 2})
    write(path, {"extends": "A.b_Z-9", "a": 1})
    assert load._extended(path, "sites") == {"a": 1, "b": 2}
    write(path, {"extends": "x" * 64})
    assert "is not known" in refused(load._extended, path, "sites")


# Faults ---------------------------------------------------------------------------------------


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = 1
    key_env: int = 1


class Middle(BaseModel):
    model_config = ConfigDict(extra="forbid")
    inner: Inner = Inner()


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    flag: bool = False
    rows: tuple[Inner, ...] = ()
    some: dict[str, Inner] = {}
    maybe: Inner | None = None
    words: list[str] = []
    many: dict[str, int] = Field(default={}, min_length=1)
    least: tuple[Inner, ...] = Field(default=(), min_length=2)
    deep: Middle = Middle()


def faults(**given: Any) -> list[str]:
    """The lines of what is told of a table, without the first, which counts them."""
    told = refused(load.validate, Outer, {"name": "x"} | given, "mine.yaml")
    first, *lines = told.splitlines()
    assert first == f"mine.yaml: {len(lines)} fault{'s' if len(lines) > 1 else ''}"
    assert all(line.startswith("  ") for line in lines)
    return [line[2:] for line in lines]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": 7}, ["name: found 7: a text is wanted"]),
        ({"name": None}, ["name: found nothing: a text is wanted"]),
        ({"name": [7]}, ["name: a text is wanted"]),
        ({"name": {"a": 1}}, ["name: a text is wanted"]),
        ({"name": (1,)}, ["name: a text is wanted"]),
        ({"flag": []}, ["flag: true or false is wanted"]),
        ({"rows": 3}, ["rows: found 3: a list is wanted"]),
        ({"words": 3}, ["words: found 3: a list is wanted"]),
        ({"words": ["a", 3]}, ["words.1: found 3: a text is wanted"]),
        ({"some": 3}, ["some: found 3: keys with values are wanted"]),
        ({"rows": [3]}, ["rows.0: found 3: keys with values are wanted"]),
        (
            {"rows": [{"size": "x"}]},
            ["rows.0.size: found 'x': Input should be a valid integer, unable to parse string as an "
             "integer"],
        ),
        ({"name": "y" * 99, "flag": 3}, ["flag: found 3: Input should be a valid boolean, unable to "
                                         "interpret input"]),
        ({"words": ["z" * 70, 8]}, ["words.1: found 8: a text is wanted"]),
        (
            {"rows": [{"sise": 1}]},
            ["rows.0: key 'sise' is not known; did you mean 'size'? Allowed: size, key_env."],
        ),
        (
            {"some": {"x": {"sise": 1}}},
            ["some.x: key 'sise' is not known; did you mean 'size'? Allowed: size, key_env."],
        ),
        (
            {"maybe": {"sise": 1}},
            ["maybe: key 'sise' is not known; did you mean 'size'? Allowed: size, key_env."],
        ),
        (
            {"rowz": 1},
            ["key 'rowz' is not known; did you mean 'rows'? Allowed: name, flag, rows, some, maybe, "
             "words, many, least, deep."],
        ),
        ({"rows": [{"key_env": "sk-1"}]}, ["rows.0.key_env: Input should be a valid integer, unable to "
                                           "parse string as an integer; what stands there is not shown"]),
        ({"many": {}}, ["many: Dictionary should have at least 1 item after validation, not 0"]),
        (
            {"deep": {"inner": {"sise": 1}}},
            ["deep.inner: key 'sise' is not known; did you mean 'size'? Allowed: size, key_env."],
        ),
        (
            {"deep": {"iner": 1}},
            ["deep: key 'iner' is not known; did you mean 'inner'? Allowed: inner."],
        ),
        (
            {"least": [{"size": []}], "words": 3, "deep": 3},
            ["words: found 3: a list is wanted", "least.0.size: Input should be a valid integer",
             "deep: found 3: keys with values are wanted"],
        ),
        # What is there has faults of its own; that it is too little is not told too.
        ({"least": [{"size": []}]}, ["least.0.size: Input should be a valid integer"]),
        ({"least": [{}]}, ["least: Tuple should have at least 2 items after validation, not 1"]),
    ],
)  # fmt: skip
def test_a_fault_is_told_by_its_key(given, told):
    assert faults(**given) == told


def test_every_fault_is_told_but_ten_at_most():
    assert faults(name=1, flag=[]) == [
        "name: found 1: a text is wanted",
        "flag: true or false is wanted",
    ]
    ten = refused(load.validate, Outer, {"name": "x", "words": [*range(10)]}, "f")
    assert ten.splitlines()[0] == "f: 10 faults" and len(ten.splitlines()) == 11
    eleven = refused(load.validate, Outer, {"name": "x", "words": [*range(11)]}, "f")
    assert eleven.endswith("\n... and 1 more")
    more = refused(load.validate, Outer, {"name": "x", "words": [*range(12)]}, "f").splitlines()
    assert more[0] == "f: 12 faults" and more[10:] == [
        "  words.9: found 9: a text is wanted",
        "... and 2 more",
    ]


def test_what_is_missing_or_no_table():
    assert refused(load.validate, Outer, {}, "f") == "f: 1 fault\n  name: is missing"
    assert refused(load.validate, Outer, 3, "f") == (
        "f: 1 fault\n  (whole file): found 3: keys with values are wanted"
    )
    assert load.validate(Outer, {"name": "x"}, "f") == Outer(name="x")


def test_what_a_field_wants_is_told_in_its_own_words():
    told = refused(load.validate, schema.Site, site(nic="-"), "f")
    assert told == (
        "f: 1 fault\n  nic: found '-': a network interface is wanted here, such as eth0 or enp67s0f5 "
        "(15 characters at most)"
    )


def test_without_its_table_no_keys_are_listed():
    with pytest.raises(ValueError) as caught:
        Outer.model_validate({"name": "x", "rows": [{"sise": 1}], "nam": 1})
    assert load.explain_faults(caught.value, "f") == (
        "f: 2 faults\n  rows.0.sise: this key is not known here\n  nam: this key is not known here"
    )


# Paths ----------------------------------------------------------------------------------------


def test_a_path_of_the_user(monkeypatch, here):
    monkeypatch.setenv("HOME", "/home/me")
    assert load.user_path("~/x.yaml", "site") == Path("/home/me/x.yaml")
    assert load.user_path("a/x.yaml", "site") == Path("a/x.yaml")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("", "site '': a path is wanted, without braces."),
        (" ", "site ' ': a path is wanted, without braces."),
        ("{root}/x", "site '{root}/x': a path is wanted, without braces."),
        (
            "x;" + "y" * 90,
            f"site '{'x;' + 'y' * 78}': the character ';' is not allowed (letters, digits, spaces and "
            ". _ / : @ % + = , ~ - [ ] { } are).",
        ),
        ("~no-such-user/x", "site '~no-such-user/x': Could not determine home directory."),
    ],
)
def test_what_is_no_path(given, told):
    assert refused(load.user_path, given, "site") == told


@pytest.mark.parametrize("given", [None, 7, "", "  "])
@pytest.mark.parametrize("kind", ["hardware", "model", "site"])
def test_what_is_no_name(kind, given):
    every = load.names({"model": "models", "site": "sites"}.get(kind, kind))
    assert refused(getattr(load, kind), given) == (
        f"{kind} '{given}' is not known. Allowed: {', '.join(every)}."
    )


def test_a_name_that_nobody_has(here):
    told = refused(load.model, "kimi-k2.55")
    assert told == (
        "model 'kimi-k2.55' is not known; did you mean 'k2.5'? Allowed: "
        f"{', '.join(load.names('models'))}. A path to a file of your own works too (./mine.yaml)."
    )
    (here / "kimi-k2.55.yaml").touch()
    assert refused(load.model, "kimi-k2.55").endswith(
        " There is a file of yours of that name: ./kimi-k2.55.yaml."
    )
    assert refused(load.model, "x y").endswith(" of your own works too (./mine.yaml).")
    assert refused(load.model, "x" * 300).endswith(" of your own works too (./mine.yaml).")
    (here / "x y.yaml").touch()
    assert refused(load.model, "x y").endswith(" of your own works too (./mine.yaml).")


def test_what_is_a_path_and_what_a_name(here):
    for given in ("models/x", "mine.yaml", "mine.yml", "a/b/k2.5"):
        assert refused(load.model, given).startswith(f"{given}: no such file.")
    # The id of weights on a hub is a name, as long as no such file is there.
    assert "is not known; did you mean 'k2.5'" in refused(load.model, "moonshotai/Kimi-K2.55")
    assert refused(load.hardware, "moonshotai/Kimi").startswith("moonshotai/Kimi: no such file.")
    (here / "moonshotai").mkdir()
    (here / "moonshotai" / "Kimi-K2.55").write_text("name: 1\n")
    assert refused(load.model, "moonshotai/Kimi-K2.55").startswith("moonshotai/Kimi-K2.55: ")
    assert refused(load.site, "a;b/x").startswith("site 'a;b/x': the character ';'")
    assert refused(load.hardware, "a;b/x").startswith("hardware 'a;b/x': the character ';'")


# Models with what others publish --------------------------------------------------------------


def test_a_model_has_the_recipes_that_others_publish_after_its_own():
    raw = load.data_files.read_yaml(PARAMS / "models" / "k2.6.yaml")
    own = len(raw["recipes"])
    made = load.model("k2.6")
    assert [bool(one.source.deployment) for one in made.recipes[:own]] == [False] * own
    assert len(made.recipes) > own
    assert all(one.source.deployment for one in made.recipes[own:])


def test_a_file_of_one_s_own_with_families(here, project):
    recipe = json.loads((PARAMS / "recipes" / "k2-instruct.json").read_text())["recipes"][:1]
    write(project / "recipes" / "some.json", {"recipes": recipe})
    write(project / "recipes" / "other.json", {"recipes": []})
    (project / "recipes" / "text.txt").touch()
    own = {"name": "x", "recipes": ["own"], "families": "some"}
    found = load._with_families(own, Path("mine.yaml"))
    assert set(found) == {"name", "recipes"} and found["recipes"][0] == "own"
    assert [one.hardware for one in found["recipes"][1:]] == list(recipe[0]["hardware"])
    assert refused(load._with_families, own | {"families": "somme"}, Path("mine.yaml")) == (
        "mine.yaml: families: file 'somme' is not known; did you mean 'some'? Allowed: other, some."
    )
    for given, recipes in ((None, ["own"]), ("some", None), ("some", "x")):
        plain = load._with_families({"families": given, "recipes": recipes}, Path("m"))
        assert plain == {"recipes": recipes}
    assert load._with_families({"name": "x", "recipes": []}, Path("m")) == {
        "name": "x",
        "recipes": [],
    }
    write(project / "recipes" / "bad.json", {"recipes": 3})
    told = refused(load._with_families, own | {"families": "bad"}, Path("m"))
    assert told == (f"{project}/recipes/bad.json: 1 fault\n  recipes: found 3: a list is wanted")


def test_families_that_nobody_has_are_told_with_their_file(here):
    path = write(here / "mine.yaml", {"extends": "tiny-llama", "families": "none"})
    assert refused(load.model, path).startswith(f"{path}: families: file 'none' is not known")


def test_published_recipes_are_read_as_utf_8(project):
    recipe = json.loads((PARAMS / "recipes" / "k2-instruct.json").read_text())["recipes"][0]
    text = json.dumps({"recipes": [recipe | {"title": "\u00e9\u4e2d"}]}, ensure_ascii=False)
    (project / "recipes" / "some.json").write_bytes(text.encode())
    found = load._with_families({"recipes": [], "families": "some"}, Path("m"))
    assert {one.title for one in found["recipes"]} == {"\u00e9\u4e2d"}


# Sites ----------------------------------------------------------------------------------------


def test_calibrations_lie_beside_the_site(here, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    given = ["a.yaml", "/abs/b.yaml", "~/c.yaml"]
    path = write(here / "mine.yaml", site(calibration=given))
    assert load.site(path).calibration == (f"{here}/a.yaml", "/abs/b.yaml", "/home/me/c.yaml")
    write(here / "mine.yaml", site(calibration=[3, "a"]))
    assert "calibration.0: found 3: a text is wanted" in refused(load.site, path)
    write(here / "mine.yaml", site(calibration=3))
    assert "calibration: found 3: a list is wanted" in refused(load.site, path)
    write(here / "mine.yaml", site())
    assert load.site(path).calibration == ()


def test_paths_of_a_site_may_begin_with_the_project(here):
    root = str(paths.root())
    given = {"cache": "{root}", "work": "{root}/w", "models": "/x/{root}", "engine": "{rooty}/x"}
    told = refused(load.site, write(here / "mine.yaml", site(paths=given)))
    assert "paths.models: found '/x/{root}'" in told and "'{rooty}/x'" in told
    assert told.startswith(f"{here}/mine.yaml: 2 faults")
    good = write(
        here / "mine.yaml", site(paths={"cache": "{root}", "work": "{root}/../of-the-engines"})
    )
    found = load.site(good).paths
    assert (found.cache, found.work) == (root, f"{root}/../of-the-engines")
    for paths_, told in (
        (3, "paths: found 3"),
        ({"cache": 3, "work": "/w"}, "paths.cache: found 3"),
    ):
        assert told in refused(load.site, write(here / "mine.yaml", site(paths=paths_)))
    # Only sites have such paths.
    write(here / "chip.yaml", {"extends": "a3", "name": "x", "title": "{root}/x"})
    assert load.hardware("./chip.yaml").title == "{root}/x"


# What is returned -----------------------------------------------------------------------------


def test_ours_are_read_once_and_the_user_s_each_time(here):
    assert load.hardware("a3") is load.hardware("A3")
    assert isinstance(load.hardware("a3"), schema.Hardware) and load.hardware("a3").name == "a3"
    assert isinstance(load.model("k2.5"), schema.Model) and load.model("k2.5").name == "k2.5"
    assert isinstance(load.site("a3"), schema.Site) and load.site("a3").name == "a3-example"
    path = write(here / "mine.yaml", site())
    assert load.site(path).nic == "eth0"
    os.utime(write(here / "mine.yaml", site(nic="x0")), ns=(1, 1))
    assert load.site(path).nic == "x0"


def test_a_calibration(here):
    values = {
        "kind": "memory-calibration", "engine": "vllm", "version": "0.32.0", "model": "k2.5",
        "precision": "INT4", "hardware": "h200", "role": "mixed", "graphs_gib": 1.5,
        "measured": {"date": "2026-01-02", "logs": ["a.log"]},
    }  # fmt: skip
    path = write(here / "mine.yaml", values)
    assert load.calibration(path).graphs_gib == 1.5
    write(here / "mine.yaml", values | {"role": "x"})
    told = refused(load.calibration, path)
    assert told.startswith(f"{path}: 1 fault\n  role: found 'x': ")
    assert refused(load.calibration, "a;b").startswith("--calibration 'a;b': the character")
    assert refused(load.calibration, "a;b", "size: file").startswith("size: file 'a;b': the")
    assert refused(load.calibration, "none").startswith("none: no such file.")


def test_features_by_name(project):
    path = project / "features.yaml"
    one = {"title": "T", "reason": "R", "price": "P"}
    write(path, {"a": one, "b": one | {"roles": ["decode"]}})
    found = load.features()
    assert list(found) == ["a", "b"] and found["b"].roles == ("decode",)
    assert isinstance(found["a"], schema.Feature) and load.features() is found
    forget()
    write(path, {"a": {"title": "T", "reason": "R"}})
    assert refused(load.features) == f"{path}: 1 fault\n  a.price: is missing"
