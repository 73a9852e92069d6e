"""Resources of this machine: GPUs and CPU cores, the queue for GPUs, and the processes of a run."""
