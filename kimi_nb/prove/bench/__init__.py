"""Load on a service, and what came of it: one file for each cell of a sweep and repetition."""
