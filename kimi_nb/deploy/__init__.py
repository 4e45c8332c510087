"""Deploy a bundle on the user's site: nodes over SSH, the local machine, or a SLURM cluster.

Nothing here depends on rehearsals. Other packages call `lifecycle.up`, `lifecycle.preview`,
`lifecycle.status` and `lifecycle.down`. Each way to reach a site implements `steps.Target`.
"""
