"""Describe what each engine version knows: flags, variables, JSON keys, and how they changed."""
