"""The local stack: a real Kubernetes and a real Slurm on one machine, for development, tests and the demo.

In: a command line (`cli`). Out: running daemons, and a state folder with all that a client needs to reach
them.

    cli -> commands -> {workloads, kubernetes, slurm, bridge, nodes, wrappers, facts}
        -> {kubestack, rootfs, process} -> layout -> progress
"""
