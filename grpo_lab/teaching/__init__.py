"""Tools that only lessons use: the beginning of a notebook, predictions, plots, planted bugs, prefix probabilities."""
