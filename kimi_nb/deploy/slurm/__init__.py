"""Deploy a plan on a SLURM cluster from its login node: submit, follow and cancel jobs."""
