"""Reach nodes over SSH: `transport` is the interface, pyinfra runs in a process of its own."""
