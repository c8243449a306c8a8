"""A search for good settings: trials of `polyak train`, chosen and cut short by Optuna."""
