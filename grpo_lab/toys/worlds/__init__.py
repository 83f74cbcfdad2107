"""Worlds so small that every expectation can be enumerated, and losses set side by side in them."""

from grpo_lab.toys.worlds.small_world import SmallWorld
