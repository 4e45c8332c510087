"""How well a service answers, measured against the scores that the documents publish.

`measure` is what a notebook calls; `evaluation_commands` writes the same measurements as command
lines. `lm_eval` and `ais_bench` adapt the two evaluation tools to one interface, `evaluators`
installs them, `tool_process` runs one and `evaluation_faults` explains why one failed.
`evaluation` is the request, `scores` its result, `published_scores` what the documents print,
`score_settings` what differs between the two, and `statistics` whether they agree.
"""
