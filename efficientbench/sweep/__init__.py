"""Do many runs as one command: select them, queue them on disk, start and watch them, report the suite."""
