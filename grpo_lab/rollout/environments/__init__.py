"""Sampling episodes, in which an environment or tools reply within the completions of the policy."""
