"""Load the parameter files (hardware, model, site): schema, layers with provenance, recipes."""
