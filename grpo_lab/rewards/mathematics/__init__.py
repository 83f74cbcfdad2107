"""Equality of mathematical answers: numbers are compared exactly, and other expressions by Math-Verify."""

from grpo_lab.rewards.mathematics.equality import math_reward
