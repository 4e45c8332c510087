"""Load the parameter files (hardware, model, site): schema, layers with provenance, recipes.

Everything here is pure except for reading the files. Other packages call `load.hardware("a3")`,
`load.model("k2.5")`, `load.site("cluster.yaml")` and `recipes.find(...)`; `settings` merges the
layers of settings and remembers where each value came from.
"""
