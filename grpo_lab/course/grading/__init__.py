"""Marks for what came in: each submission in a process of its own, in a sandbox; and the report.

Nothing is imported here, and nothing in `sandbox`: the process that runs a submission imports both packages, and has
no use for the grader.
"""
