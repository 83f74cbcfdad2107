"""What only lessons use: the beginning of a notebook, predictions, plots, planted bugs, formulas that no run calls."""
