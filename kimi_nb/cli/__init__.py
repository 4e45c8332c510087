"""The command line ``kimi-nb``, one module per command. The highest room.

A command's module has its name, `add`, which declares the arguments, and `run`, which does the
work and returns the exit code. `main` imports it by name; the modules `options`, `output` and
`signals` hold what commands share.

Imports of the rooms below that do the work stay inside functions: ``kimi-nb --help`` imports
every command and must not load pydantic or pandas.
"""
