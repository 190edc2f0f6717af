"""Plans of runs: on this machine, on any machine, and on a cluster that need not be available."""
