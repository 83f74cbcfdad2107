"""How completions are sampled: their number and length, and the distribution that their tokens are drawn from."""

from dataclasses import dataclass

from grpo_lab.base.checks import InputError, check_at_least, check_choice, check_positive


@dataclass(frozen=True)
class SamplingParams:
    """The settings of a sampler; `GRPOConfig.sampling_params` makes those of a run.

    Raises:
        InputError: if a setting is out of its range.
    """

    num_generations: int  # G, number of completions or episodes of each prompt
    max_completion_length: int  # maximum number of tokens of a completion, or of an episode including the replies
    temperature: float = 1.0
    top_k: int = 0  # number of most likely tokens to draw from; 0 draws from all
    top_p: float = 1.0  # total probability of the most likely tokens to draw from; 1 draws from all
    repetition_penalty: float = 1.0  # transformers' penalty for tokens that have occurred; 1 means no penalty
    # "dynamic" samples by transformers' `generate`, whatever the model. None: by a faster sampler where there is one.
    cache_implementation: str | None = None

    def __post_init__(self):
        check_at_least("num_generations", self.num_generations, 1)
        check_at_least("max_completion_length", self.max_completion_length, 1)
        check_choice("cache_implementation", self.cache_implementation, (None, "dynamic"))
        check_positive("temperature", self.temperature)
        check_at_least("top_k", self.top_k, 0)
        if not 0 < self.top_p <= 1:
            raise InputError("top_p", self.top_p, "it must be positive and at most 1")
        check_positive("repetition_penalty", self.repetition_penalty)
