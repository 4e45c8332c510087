"""The first failure of a deployment, with the plan that says which rank is where."""

from __future__ import annotations

from kimi_nb.diagnose import first_failure
from kimi_nb.plan import build


def test_what_a_launcher_quotes_belongs_to_the_rank_that_said_it():
    plan = build.plan("k2.6", "a3", "pd")
    node = plan.of(plan.nodes[1])[0].node
    said = "  Value error, data_parallel_rank (99) must be in the range [0, 4)"
    own = ["Traceback (most recent call last):", "ValidationError: 1 validation error", said]
    told = "ERROR 11-23 07:47:59 [launch_online_dp.py:288] rank 1 failed: exit code 1"
    quoted = [f"{told}; last lines of ./logs/rank_1.log:", *own]
    logs = [
        first_failure.Log(node, None, f"{node}/engines.log", quoted),
        first_failure.Log(node, 1, f"{node}/rank_1.log", own),
    ]
    found = first_failure.of_logs(logs, plan, "at start")
    assert found is not None and (found.kind, found.node, found.rank) == ("wrong-rank", node, 1)
