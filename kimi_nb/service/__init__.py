"""Inspect the nodes that a service is to run on, and watch the service from outside."""
