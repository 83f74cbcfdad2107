"""Toys: sorting numbers (notebook 03), worlds small enough to enumerate, and the arithmetic of many machines."""
