"""Inspect the nodes that a service is to run on, and watch the service from outside.

Imports only `diagnose` and the rooms below it. `http_client` sends every request to a service,
within deadlines and a number of bytes; `probe` asks one rank; `readiness` waits until every rank
answers; notebooks hold a `handle.Service`. `prerequisites` and `weights` inspect a node,
`installed_engine` reads what an installed vLLM accepts, and `cpu_engine` installs the real vLLM for
this machine's CPU.
"""
