"""From a rollout to its rewards: what the reward functions are shown, in the form in which TRL shows it."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from grpo_lab.config import GRPOConfig
from grpo_lab.rewards import score_completions
from grpo_lab.rollout import Rollout


def reward_rollout(
    rollout: Rollout, rows: list[dict], reward_funcs: Callable | list[Callable], config: GRPOConfig | None = None
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B F"], list[str]]:
    """Reward the completions of these rows, with what `score_completions` returns. Without a config each weighs 1."""
    what = _as_reward_functions_see_it(rollout, rows)
    return score_completions(reward_funcs, *what, None if config is None else config.reward_weights)


def _as_reward_functions_see_it(rollout: Rollout, rows: list[dict]) -> tuple[list, list, list, dict]:
    """Prompts, completions, their token ids and the other columns. A completion comes in the form of its prompt."""
    rows = [rows[prompt] for prompt in rollout.prompt_of_row.tolist()]
    completions = [
        text if isinstance(row["prompt"], str) else [{"role": "assistant", "content": text}]
        for row, text in zip(rows, rollout.texts, strict=True)
    ]
    kept = zip(rollout.completion_ids.cpu(), rollout.mask.cpu(), strict=True)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
    return [row["prompt"] for row in rows], completions, [ids[mask].tolist() for ids, mask in kept], columns
