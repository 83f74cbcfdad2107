"""When do two answers mean the same? What form an answer may have; numbers, exactly; the rest by Math-Verify."""

from grpo_lab.rewards.mathematics.equality import math_reward
