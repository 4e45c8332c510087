"""Disasters that happen to the commands of kimi-nb; `run` makes them happen, one after another."""
