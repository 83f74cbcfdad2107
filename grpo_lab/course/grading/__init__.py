"""Marks for what came in: each submission in a process of its own, behind walls; and the report."""
