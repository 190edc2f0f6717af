"""Plans of runs: on this machine, on any, and on a cluster that is not at hand."""
