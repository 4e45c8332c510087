"""Practise failures: a fault is rehearsed, a person reads its logs and names it, the doctor tells.

This package is above `rehearse`, which makes the failure, and `diagnose`, which explains it; neither
knows of it. Other packages call `exercise.start(plan, folder)` and `record.find(folder)`; both return
a `record.Drill`. `verdict.judge` compares a person's answer with what was made to go wrong.
"""
