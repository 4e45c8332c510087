"""Bind a recipe to a site: engines on nodes with devices, ports and command lines, and the router."""
