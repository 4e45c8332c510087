"""Search which deployments keep a promise, before a device is spent. Pure.

`search.answer` takes a model, a hardware, a number of nodes, a workload and bounds of latency, and
returns the plans that keep them, ranked by tokens per second and device, each with the term of time
that limits it. Called by `kimi_nb.cli.size` and `kimi_nb.notebook.size_proposal`.
"""
