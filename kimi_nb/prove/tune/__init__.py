"""Tuning: scenarios side by side, physical limits, advice from measurements, sweeps."""
