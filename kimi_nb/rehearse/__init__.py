"""Rehearsals: the bundle's own scripts on this machine, with stand-ins for what it lacks."""
