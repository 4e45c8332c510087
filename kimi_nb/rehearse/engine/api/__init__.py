"""The HTTP interface of the stand-in engine: routes, requests, answers, and counters."""
