"""A browser before JupyterLab."""
