"""Those who listen to training events: the measurement, the people at the terminal, and the files of a run."""
