"""The grading of submissions: each runs in its own sandboxed process, and the results become tables and pages.

This file imports nothing, because the process that runs a submission imports the package and does not need the grader.
"""
