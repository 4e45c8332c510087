"""The texts of a bundle for people: what they name is there."""

import re
import shlex

from conftest import ROOT

from kimi_nb.bundle import node_files, readmes, scripts
from kimi_nb.cli import main
from kimi_nb.plan import build


def test_the_day_of_each_plan_makes_that_plan(each_plan):
    """Its options, read by bash and by the command line, give the same plan again."""
    text = readmes.day(each_plan)
    words = shlex.split(re.search(r"^PLAN=\((.*)\)$", text, re.MULTILINE)[1])
    options = dict(zip(words[::2], words[1::2], strict=True))
    assert options.pop("--site") == f"./{each_plan.site}.yaml"
    again = build.plan(
        options["--model"],
        options["--hw"],
        options["--layout"],
        variant=options["--variant"],
        scenario=options.get("--scenario", ""),
    )
    assert again.as_json() == each_plan.as_json()
    for command in re.findall(r"^\| `(kimi-nb \w+)", text, re.MULTILINE):
        assert command.split()[1] in main.COMMANDS
    for notebook in re.findall(r"notebooks/\S+", text):
        assert (ROOT / notebook).exists()
    assert text.count("--confirm " + each_plan.site) == 1


def test_options_are_quoted_for_bash(site_file):
    plan = build.plan("k2.5", "a3", "pd", pairs=["env.X=a b"], chosen=["prefix-caching"])
    text = readmes.day(plan)
    assert "--with prefix-caching --set 'env.X=a b'" in text


def test_a_node_s_readme_says_where_its_folder_goes(each_plan):
    files = scripts.files(each_plan)
    for node in each_plan.nodes:
        text = files[f"{node}/README.md"]
        if each_plan.jobs:
            assert "Copy this folder" not in text
            continue
        assert f"`{node_files.folder(each_plan, node)}`" in text
        assert ("docker exec -it" in text) == (
            f"{node}/docker_run.sh" in files
            and bool({f"{node}/serve.sh", f"{node}/launch.sh"} & set(files))
        )
        assert ("disaggregated_prefill_v1" in text) == (
            f"{node}/proxy.sh" in files and each_plan.router.kind == "upstream"
        )
