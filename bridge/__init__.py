"""slurm-bridge: Kubernetes pods and sbatch jobs share one set of nodes, and Slurm decides who gets what."""
