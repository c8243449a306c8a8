"""From one run to many: a grid of runs, and the places where they can run."""
