"""Tuning: documented scenarios side by side, physical limits, advice from measurements, and sweeps.

Others call `scenarios.compare`, `limits.of_plan`, `advice.of`, `design.of` and `sweep.run`.
"""
