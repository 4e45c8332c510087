"""Give notebooks a small set of calls over everything below."""
