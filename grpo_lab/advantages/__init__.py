"""Advantages: the reward of a completion compared with the other completions of its prompt.

Axes: P prompts, G completions of a prompt, T tokens, K turns.

Read it in this order: `formulas` (the advantages of completions), `turns` (those of turns), and `estimators`, with the
entry of each value of the setting `advantage` and the rule for completions without a reward
(`AdvantageEstimator.compute`).

Invalid arguments raise a ValueError that names the argument.
"""

from grpo_lab.advantages.estimators import ADVANTAGES, AdvantageEstimator, AdvantageSettings, RewardBatch
from grpo_lab.advantages.formulas import (
    SCALES,
    best_of_group,
    group_advantages,
    process_advantages,
    return_to_go,
    rloo_advantages,
)
from grpo_lab.advantages.turns import gigpo_advantages, trajectory_advantages, turn_advantages
