"""Turn a plan into files that a person could run by hand."""
