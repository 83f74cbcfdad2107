"""Plant known texts as the completions of two problems, so that every count of an evaluation is known."""

import dataclasses

from grpo_lab.rollout.environments import environment
from grpo_lab.rollout.sample import sample_prompts

# Two problems with four completions each, and the number of right completions.
TEXTS = {
    "a": ["<think>1</think><answer>2</answer>", "<answer>2</answer>", "2", "<think> </think><answer>3</answer>"],
    "f": ["<answer>9</answer>", "", "<think>x</think><answer>1</answer>", "<think>x</think>"],
}
PLANTED_ROWS = [{"prompt": "a", "answer": "2"}, {"prompt": "f", "answer": "1"}]


def plant_texts(monkeypatch, texts=TEXTS):
    """Replace the texts of sampled completions by the planted ones; ids, lengths and masks stay those of the sample."""

    def planted(model, tokenizer, prompts, sampling_params):
        rollout = sample_prompts(model, tokenizer, prompts, sampling_params)
        planted_texts = [text for prompt in prompts for text in texts[prompt][: sampling_params.num_generations]]
        return dataclasses.replace(rollout, texts=planted_texts)

    monkeypatch.setattr(environment, "sample_prompts", planted)
