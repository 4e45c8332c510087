"""Define the marks on results that say nothing about a model."""

MARK = "REHEARSAL"  # on everything that a stand-in has made
RANDOM = "RANDOM WEIGHTS"  # on the scores of an engine with untrained weights
