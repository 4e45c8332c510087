"""Run a plan's own scripts on this machine, with stand-ins for the hardware and software it lacks.

This package is built on `service` and does not know `deploy`. Other packages call
`rehearsal.start(plan, folder)` and `rehearsal.rehearse(...)`. `engine` holds the stand-in for
vLLM, `host_programs` the stand-ins that come first on PATH, and `faults` the failures that a
rehearsal can simulate.
"""
