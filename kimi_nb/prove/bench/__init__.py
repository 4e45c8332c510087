"""Load tests of a service, and tables and pictures of their results.

`workload` describes the load, `measurements` runs a sweep and writes one file for each load and
repetition, and `results` reads those files. Others call `workload.sweep`, `measurements.measure`
and `results.load`.
"""
