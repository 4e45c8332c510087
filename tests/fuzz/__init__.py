"""Fuzzing: what strangers write, changed at random, against what must hold of every input."""
