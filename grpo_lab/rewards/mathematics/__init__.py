"""Equality of mathematical answers: the forms they may have; numbers compared exactly; the rest by Math-Verify."""

from grpo_lab.rewards.mathematics.equality import math_reward
