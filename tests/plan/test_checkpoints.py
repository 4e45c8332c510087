"""Where checkpoints lie on the nodes, and which command fetches each: paths and words, one by one."""

from __future__ import annotations

import pytest

from kimi_nb.params import load, schema
from kimi_nb.params.schema import Draft, Network, Weights
from kimi_nb.plan import build, checkpoints

SITE = load.site("h200")
H200 = load.hardware("h200")
WEIGHTS = Weights(id="moon/K2.5", precision="INT4", directory="k2.5", hub="huggingface")
DRAFT = Draft(id="light/eagle", method="eagle3", tokens=3, directory="eagle", vendors=("nvidia",))
HUB = "/cache/hub/models--moon--K2.5/snapshots/*"


def weights(**more) -> Weights:
    return WEIGHTS.model_copy(update=more)


def site(**more) -> schema.Site:
    return SITE.model_copy(update={"paths": schema.Paths(cache="/cache", work="/wf", **more)})


# One checkpoint -----------------------------------------------------------------------------------


def test_a_checkpoint_in_the_cache():
    given = weights(size_gb=594, files=("a.py",), edit="quantization-target")
    assert checkpoints.checkpoint(site(), given, "", "/home") == checkpoints.Checkpoint(
        id="moon/K2.5",
        hub="huggingface",
        into="/home",
        places=("/home/hub/models--moon--K2.5/snapshots/*",),
        elsewhere=(),
        files=("a.py",),
        config_only=False,
        size_gb=594,
        edit="quantization-target",
        command=("hf", "download", "moon/K2.5", "--max-workers", "8"),
    )


def test_a_checkpoint_in_a_folder():
    found = checkpoints.checkpoint(site(), WEIGHTS, "/models", "/home", config_only=True)
    assert (found.into, found.places) == ("/models/k2.5", ("/models/k2.5",))
    assert found.elsewhere == (
        "/models/moon/K2.5",
        "/home/hub/models--moon--K2.5/snapshots/*",
        *checkpoints.cached("/cache", "moon/K2.5"),
    )
    assert (found.config_only, found.size_gb, found.files, found.edit) == (True, None, (), "")
    assert found.command == (
        *("hf", "download", "moon/K2.5", "--local-dir", "/models/k2.5", "--max-workers", "8"),
    )


def test_a_draft_has_no_files_and_no_edit():
    found = checkpoints.checkpoint(site(), DRAFT, "/models", "/home")
    assert (found.id, found.hub, found.files, found.edit) == ("light/eagle", "huggingface", (), "")
    assert found.into == "/models/eagle"


def test_what_comes_with_the_project_is_not_downloaded():
    assert checkpoints.checkpoint(site(), weights(hub="none"), "/models", "/home").command == ()


def test_modelscope_has_words_of_its_own():
    given = weights(hub="modelscope")
    assert checkpoints.download(given, "/models/k2.5") == (
        *("modelscope", "download", "--model", "moon/K2.5", "--local_dir", "/models/k2.5"),
        *("--max-workers", "8"),
    )


@pytest.mark.parametrize(
    ("item", "size"),
    [
        (WEIGHTS, None),
        (weights(size_gb=594), 594),
        (DRAFT, None),
        (DRAFT.model_copy(update={"parameters_million": 1900}), 4),
        (DRAFT.model_copy(update={"parameters_million": 3500}), 7),
        (DRAFT.model_copy(update={"parameters_million": 3501}), 8),
    ],
)
def test_the_size_of_a_checkpoint(item, size):
    assert checkpoints.size_gb(item) == size


def test_the_page_of_a_checkpoint():
    assert checkpoints.link(WEIGHTS) == "https://huggingface.co/moon/K2.5"
    scope = weights(hub="modelscope")
    assert checkpoints.link(scope) == "https://modelscope.cn/models/moon/K2.5"
    assert checkpoints.link(weights(hub="none")) == ""


def test_the_caches_of_both_hubs_in_each_of_their_forms():
    assert list(checkpoints.cached("/c", "moon/K2.5")) == [
        "/c/hub/models--moon--K2.5/snapshots/*",
        "/c/huggingface/hub/models--moon--K2.5/snapshots/*",
        "/c/modelscope/models/moon--K2.5/snapshots/*",
        "/c/modelscope/hub/models/moon/K2___5",
        "/c/modelscope/models/moon/K2___5",
        "/c/modelscope/hub/moon/K2___5",
        "/c/modelscope/hub/models/moon/K2.5",
        "/c/modelscope/models/moon/K2.5",
        "/c/modelscope/hub/moon/K2.5",
        "/c/models/moon--K2.5/snapshots/*",
        "/c/hub/models/moon/K2___5",
        "/c/models/moon/K2___5",
        "/c/hub/moon/K2___5",
        "/c/hub/models/moon/K2.5",
        "/c/models/moon/K2.5",
        "/c/hub/moon/K2.5",
    ]
    without_a_dot = list(checkpoints.cached("/c", "moon/K2"))
    assert len(without_a_dot) == 10 and len(set(without_a_dot)) == 10


# The home of the cache ----------------------------------------------------------------------------


def mounting(*mounts: str) -> schema.Hardware:
    container = H200.container.model_copy(update={"mounts": mounts})
    return H200.model_copy(update={"container": container})


@pytest.mark.parametrize(
    ("mounts", "install", "home"),
    [
        (["{cache}:/root/.cache/huggingface"], "docker", "/cache"),
        (["{cache}:/root/.cache"], "docker", "/cache/huggingface"),
        (["/a:/b", "{cache}/x:/root"], "docker", "/cache/x/.cache/huggingface"),
        (["{cache}:/root/.cache:rw"], "docker", "/cache/huggingface"),
        (["{cache}:/root/.cac"], "docker", "/env"),
        (["{cache}:/root/.cache/huggingface"], "pip", "/env"),
        ([], "docker", "/env"),
    ],
)
def test_the_home_of_the_cache_is_the_mount_or_what_the_engine_says(mounts, install, home):
    found = checkpoints.hub_home(mounting(*mounts), site(), install, {"HF_HOME": "/env"})
    assert found == home


def test_without_any_word_the_cache_is_in_the_home_folder():
    home = "~/.cache/huggingface"
    assert checkpoints.hub_home(mounting(), site(), "docker", {}) == home
    bare = H200.model_copy(update={"container": None})
    assert checkpoints.hub_home(bare, site(), "docker", {}) == home


def test_the_variables_of_a_download():
    env = {
        "HF_ENDPOINT": "https://own",
        "HF_TOKEN_PATH": "/t",
        "MODELSCOPE_CACHE": "/ms",
        "http_proxy": "http://own",
        "HTTPS_PROXY": "http://s",
        "no_proxy": "x",
        "OMP_NUM_THREADS": "1",
        "MY_HF_HOME": "/no",
    }
    network = Network(huggingface="https://mirror", modelscope="https://ms.example.org")
    assert checkpoints.hub_variables(env, "/home", network) == {
        "HF_ENDPOINT": "https://own",
        "MODELSCOPE_ENDPOINT": "https://ms.example.org",
        "MODELSCOPE_DOMAIN": "ms.example.org",
        "HF_TOKEN_PATH": "/t",
        "MODELSCOPE_CACHE": "/ms",
        "http_proxy": "http://own",
        "HTTPS_PROXY": "http://s",
        "no_proxy": "x",
        "HF_HOME": "/home",
    }
    assert checkpoints.hub_variables({}, "~/.cache/huggingface", Network()) == {}


# Those of a plan ----------------------------------------------------------------------------------


def test_a_plan_serves_its_weights_and_the_draft_that_its_engines_name():
    plain = checkpoints.of(build.plan("k2.5", "h200", "single"))
    assert [one.id for one in plain] == ["moonshotai/Kimi-K2.5"]
    assert plain[0].into == "/root/.cache/huggingface" and not plain[0].config_only
    assert plain[0].size_gb == 594
    found = checkpoints.of(build.plan("k2.5", "a3", "pd"))
    assert [one.id for one in found] == ["Eco-Tech/Kimi-K2.5-W4A8", "lightseekorg/kimi-k2.5-eagle3"]
    assert [one.into for one in found] == [
        "/root/kimi/models/Kimi-K2.5-W4A8",
        "/root/kimi/models/kimi-k2.5-eagle3",
    ]
    assert not any(one.config_only for one in found)


def test_a_draft_of_one_role_is_a_checkpoint_of_the_plan():
    plan = build.plan("k2.5", "a3", "pd", pairs=["decode.speculative-config=null"])
    assert [one.id for one in checkpoints.of(plan)][1:] == ["lightseekorg/kimi-k2.5-eagle3"]
    plan = build.plan("k2.5", "a3", "pd", pairs=["prefill.speculative-config=null"])
    assert [one.id for one in checkpoints.of(plan)][1:] == ["lightseekorg/kimi-k2.5-eagle3"]


@pytest.mark.parametrize(("given", "only"), [("dummy", True), ("auto", False)])
def test_of_random_weights_only_the_configuration_is_needed(given, only):
    pairs = [f"load-format={given}"]
    plan = build.plan(
        "k2.5", "h200", "single", chosen=["eagle3-instant"], pairs=pairs, engine_version="0.32.0"
    )
    # One draft: the name of another one is the beginning of its name.
    assert [one.id for one in checkpoints.of(plan)] == [
        *("moonshotai/Kimi-K2.5", "lightseekorg/kimi-k2.5-eagle3-mla"),
    ]
    assert [one.config_only for one in checkpoints.of(plan)] == [only, only]


def test_random_weights_of_one_role_count():
    plan = build.plan("k2.5", "a3", "pd", pairs=["decode.load-format=dummy"])
    assert all(one.config_only for one in checkpoints.of(plan))


def test_the_home_is_that_of_the_engine_where_no_container_has_another():
    plan = build.plan("k2.5", "h200", "single", variant="pip", pairs=["env.HF_HOME=/big"])
    (one,) = checkpoints.of(plan)
    assert one.places == ("/big/hub/models--moonshotai--Kimi-K2.5/snapshots/*",)
