"""Give notebooks a small set of calls over everything below.

Imports from all rooms but `cli`. `start.start` binds a notebook's parameters and returns a
`run.Run`, whose methods the cells call. `runbook` executes all notebooks without a user interface;
`panel` and `pictures` are for interactive use.
"""
