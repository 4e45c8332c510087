"""Bind a recipe to a site: engines on nodes with devices, ports and command lines, and the router.

Everything is pure and imports only `catalog` and the rooms below it. Other packages call
`build.plan("k2.5", "a3", "pd")`, which returns a `spec.Plan`; `tables` shows a plan, and `memory`
estimates what a device holds.
"""
