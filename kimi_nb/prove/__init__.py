"""What a running service is worth: `verify`, `accuracy`, `bench` and `tune`."""
