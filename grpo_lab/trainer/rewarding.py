"""The rewards of a rollout, computed by the reward functions of the run and by its environment."""

from collections.abc import Callable

from grpo_lab.rewards import score_completions
from grpo_lab.rewards.functions import reward_func_list
from grpo_lab.rewards.scoring import RewardLog, Rewards
from grpo_lab.rollout import Rollout
from grpo_lab.rollout.rollout import Episode


def reward_rollout(
    rollout: Rollout,
    data_rows: list[dict],
    reward_funcs: Callable | list | None,
    weights: list[float] | None = None,
    reward_log: RewardLog | None = None,
) -> Rewards:
    """Compute the rewards of all completions of a rollout, as `score_completions` returns them.

    An environment with `get_reward` counts as one more reward function, whose weight is 1.

    Args:
        rollout: The B completions.
        data_rows: The P rows of the data set from which the completions were sampled.
        reward_funcs: One reward function or several. None if only the environment computes a reward.
        weights: The weights of `reward_funcs` in the total reward. None: each weight is 1.
        reward_log: Log that stores the metrics and columns that the reward functions log. None: they are discarded.
    """
    functions = all_reward_functions(reward_funcs, rollout)
    if weights is not None:
        weights = [*weights, *[1.0] * (len(functions) - len(reward_func_list(reward_funcs)))]
    data_row_of_completion = [data_rows[group] for group in rollout.group_of_row.tolist()]  # [rows]
    episodes = rollout.episode_per_row()
    prompts = list(map(episode_prompt, data_row_of_completion, episodes))
    completions: list[str | list[dict]] = []
    for data_row, text, episode in zip(data_row_of_completion, rollout.texts, episodes, strict=True):
        if episode.messages is not None:
            completions.append(episode.messages)
        elif isinstance(data_row["prompt"], str):
            completions.append(text)
        else:
            completions.append([{"role": "assistant", "content": text}])
    token_rows = zip(rollout.completion_ids.cpu(), rollout.mask.cpu(), strict=True)
    completion_ids = [ids[mask].tolist() for ids, mask in token_rows]
    column_names = [name for name in data_rows[0] if name != "prompt"]
    columns = {name: [data_row[name] for data_row in data_row_of_completion] for name in column_names}
    if episodes[0].environment is not None:
        columns["environments"] = [episode.environment for episode in episodes]
    columns |= (reward_log or RewardLog()).arguments()
    return score_completions(functions, prompts, completions, completion_ids, columns, weights)


def all_reward_functions(reward_funcs: Callable | list | None, rollout: Rollout) -> list[Callable]:
    """Return the reward functions, and the `get_reward` of the environment, if any, under the name of its class."""
    functions = reward_func_list(reward_funcs)
    episodes = rollout.episodes or []
    environment_class = type(episodes[0].environment) if episodes else None
    if environment_class is None or not callable(getattr(environment_class, "get_reward", None)):
        return functions

    def get_reward(completions, **_) -> list[float | None]:
        return [episode.reward for episode in episodes]

    get_reward.__name__ = environment_class.__name__
    return [*functions, get_reward]


def episode_prompt(data_row: dict, episode: Episode) -> str | list[dict]:
    """Return the prompt of an episode: that of its data row, or the one that the environment made from it."""
    return data_row["prompt"] if episode.prompt is None else episode.prompt
