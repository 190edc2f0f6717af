"""`efficientbench doctor`: whether this machine can train and measure, and what it lacks."""
