"""The command line ``kimi-nb``, one module per command. The highest room."""
