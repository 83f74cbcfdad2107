"""Tools that only lessons use: how a notebook begins, predictions, plots, planted bugs, how probable a beginning is."""
