"""Episodes: an environment, or tools, reply within the completions of the policy."""
