"""The rewards of a rollout, by the reward functions of a run and by its environment.

A comment such as `# [rows]` labels a line that exercises and mutation tests break (formulas/lines.py).
"""

from collections.abc import Callable

from grpo_lab.rewards import score_completions
from grpo_lab.rewards.logs import RewardLog
from grpo_lab.rewards.scoring import Rewards, as_list_or_empty
from grpo_lab.rollout import Rollout
from grpo_lab.rollout.rollout import Episode


def reward_rollout(
    rollout: Rollout,
    rows: list[dict],
    reward_funcs: Callable | list | None,
    weights: list[float] | None = None,
    log: RewardLog | None = None,
) -> Rewards:
    """Reward the completions of these rows, as `score_completions` does.

    An environment that has a reward of its own is one more function, which weighs 1.
    weights: one for each of `reward_funcs`; without them each weighs 1.
    log: for what the functions log; without it nobody keeps that.
    """
    functions = all_reward_functions(reward_funcs, rollout)
    if weights is not None:
        weights = [*weights, *[1.0] * (len(functions) - len(as_list_or_empty(reward_funcs)))]
    prompts, completions, completion_ids, columns = _reward_inputs(rollout, rows)
    columns |= (log or RewardLog()).arguments()
    return score_completions(functions, prompts, completions, completion_ids, columns, weights)


def all_reward_functions(reward_funcs: Callable | list | None, rollout: Rollout) -> list[Callable]:
    """The reward functions, and the one of the environment, under its class' name, if it has `get_reward`."""
    functions = as_list_or_empty(reward_funcs)
    episodes = rollout.episodes or []
    environment_class = type(episodes[0].environment) if episodes else None
    if environment_class is None or not callable(getattr(environment_class, "get_reward", None)):
        return functions

    def get_reward(completions, **_) -> list[float | None]:
        return [episode.reward for episode in episodes]

    get_reward.__name__ = environment_class.__name__
    return [*functions, get_reward]


def _reward_inputs(rollout: Rollout, rows: list[dict]) -> tuple[list, list, list, dict]:
    """Prompts, completions in the form of their prompts, their token ids, and the other columns, for each row."""
    # The row of the data of each completion.
    data_rows = [rows[group] for group in rollout.group_of_row.tolist()]  # [rows]
    episodes = rollout.episode_per_row()
    completions = [
        _completion(row["prompt"], text, episode)
        for row, text, episode in zip(data_rows, rollout.texts, episodes, strict=True)
    ]
    token_rows = zip(rollout.completion_ids.cpu(), rollout.mask.cpu(), strict=True)
    completion_ids = [ids[mask].tolist() for ids, mask in token_rows]
    columns = {name: [row[name] for row in data_rows] for name in data_rows[0] if name != "prompt"}
    if episodes[0].environment is not None:
        columns["environments"] = [episode.environment for episode in episodes]
    prompts = [
        row["prompt"] if episode.prompt is None else episode.prompt
        for row, episode in zip(data_rows, episodes, strict=True)
    ]
    return prompts, completions, completion_ids, columns


def _completion(prompt: str | list[dict], text: str, episode: Episode) -> str | list[dict]:
    """A completion as rewards get it: the messages of an episode with tools, else in the form of its prompt."""
    if episode.messages is not None:
        return episode.messages
    return text if isinstance(prompt, str) else [{"role": "assistant", "content": text}]
