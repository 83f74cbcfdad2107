"""A language small enough to compute every expectation exactly, and measures that compare losses."""

from grpo_lab.toys.worlds.small_world import SmallWorld
