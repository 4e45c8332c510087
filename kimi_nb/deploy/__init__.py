"""Run a plan's bundle on the site: nodes over SSH, this machine, or SLURM."""
