"""A deployment as the rules see it, wherever it comes from: engines, containers, clients, jobs.

`engine_view.of`, `commands`, `clients` and `container_start` each recognise a kind of command
line.
"""
