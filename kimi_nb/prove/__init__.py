"""What a running service is worth: `verify`, `accuracy`, `bench` and `tune`.

Above `rehearse` and `deploy`. Each stage takes a `service.handle.Service` and returns a value
that shows itself.
"""
