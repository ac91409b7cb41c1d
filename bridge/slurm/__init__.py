"""The slurmrestd adapter: the only place that knows an API version of Slurm, its JSON and its numbers."""
