"""What stands for vllm-ascend's example proxy does what that program was recorded to do."""

from __future__ import annotations

import contextlib
import json
import multiprocessing

import pytest
from testbed import door_scenes

from kimi_nb.rehearse.host_programs import upstream_proxy
from kimi_nb.rehearse.stand_in_call import Refused

RECORDED = json.loads(door_scenes.RECORDING.read_text(encoding="utf-8"))
SCENES = [
    (scene, tag)
    for scene in RECORDED["scenes"]
    for one in scene["came"]
    # How long an idle connection is kept takes seconds to see, and is alike in all.
    for tag in (one["tags"] if scene["name"] != "an idle connection" else one["tags"][:1])
]
# As the spawner does: forked from a process that has imported everything.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([upstream_proxy.__name__])


def door_of(tag):
    @contextlib.contextmanager
    def door(words):
        given = upstream_proxy.options(words)
        process = FORKS.Process(
            target=upstream_proxy.serve, args=(given, tag, door_scenes.KEY, print)
        )
        process.start()
        try:
            yield
        finally:
            process.terminate()
            process.join(5)
            process.kill()

    return door


@pytest.mark.parametrize(("scene", "tag"), SCENES, ids=[f"{s['name']}-{tag}" for s, tag in SCENES])
def test_the_recording_is_replayed(scene, tag):
    had = door_scenes.play(scene, door_of(tag))
    want = door_scenes.recorded(scene, tag)
    for step, mine, theirs in zip(scene["steps"], had, want, strict=True):
        if not step.get("left_out"):
            assert mine == theirs, step


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--prefiller-hosts", "a", "b"], "Number of prefiller hosts must match"),
        (["--decoder-ports", "1", "2"], "Number of decoder hosts must match"),
        (["--decoder-ports", "one"], "invalid int value: 'one'"),
        (["--policy", "round_robin"], "unrecognized arguments: --policy"),
    ],
)
def test_options_that_the_program_does_not_take(words, says):
    with pytest.raises(Refused, match=says):
        upstream_proxy.options(words)
