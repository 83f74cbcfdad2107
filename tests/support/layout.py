"""The parts of the package that are mathematics."""

# In reading order. Those that serve all parts stand first, and know nothing.
MATHEMATICS = ("policy_gradient", "advantages", "logprobs", "kl", "objective")
