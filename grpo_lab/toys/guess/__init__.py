"""The game of notebook 11, "higher or lower": environment, policy, exact rewards and gradients, and training."""

from grpo_lab.toys.guess.exact import (
    TURN_ADVANTAGES,
    group_moments,
    leave_one_out_variance,
    search_tree,
    secret_episodes,
    win_probability,
)
from grpo_lab.toys.guess.policy import GuessPolicy, greedy_episodes, greedy_reward, sample_episodes
from grpo_lab.toys.guess.training import batch_advantages, expected_step, guess_loss, train_guess
from grpo_lab.toys.guess.world import GuessWorld, all_histories, episode_rewards, policy_mask, turn_states
