"""Models, tools and environments for tests of tool calls; whole calls are tokens, so that a random model calls."""

import asyncio
import copy
import functools
import json
import random

import torch
from tokenizers import AddedToken

from grpo_lab.models import load_policy
from grpo_lab.rollout.decoding.sampling_request import Samples
from grpo_lab.rollout.environments import environment as environment_module
from tests.support.small_policy import make_config, make_model

TEMPLATE = """\
{%- if tools %}<|im_start|>system{% for tool in tools %} {{ tool.function.name }}{% endfor %}
{{- '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}
{{- '[' ~ message.content ~ ']' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' ~ message.role }}{% if message.content %}{{ '\\n' ~ message.content }}{% endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<tool_call>\\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ (call.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
END = "<|im_end|>"
ROWS = [
    {"prompt": [{"role": "user", "content": "1+2"}], "answer": "3"},
    {"prompt": [{"role": "system", "content": "Add."}, {"role": "user", "content": "40+2"}], "answer": "42"},
]


def call(name: str, **arguments) -> str:
    """Return a tool call in the form of the chat template."""
    content = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{content}\n</tool_call>"


CALLS = [
    call("add", a=1, b=2),
    call("add", a=40, b=2),
    call("add", a=1),  # an argument is missing
    call("nix", a=1),  # an unknown tool
    '<tool_call>\n{"name": "add", "arguments": {"a": 1\n</tool_call>',  # invalid JSON
]


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


def make_tool_policy(
    seed: int = 0, template: str = TEMPLATE, calls: tuple[str, ...] = tuple(CALLS), rare_tokens: tuple[str, ...] = ()
):
    """Return copies of a cached random model that often calls a tool and often ends its turn, and of its tokenizer.

    Each of `calls` and of `rare_tokens` is one token, and the model samples the former often.
    """
    model, tokenizer = map(copy.deepcopy, _tool_policy(seed, calls, rare_tokens))
    tokenizer.chat_template = template
    return model, tokenizer


@functools.cache
def _tool_policy(seed: int, calls: tuple[str, ...], rare_tokens: tuple[str, ...]):
    tokenizer = copy.deepcopy(load_tiny_tokenizer())
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*calls, *rare_tokens)])
    model = make_model(tokenizer, seed, max_position_embeddings=4096)
    frequent = tokenizer.convert_tokens_to_ids([END, *calls])
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        factor = torch.full((len(head), 1), 0.3)
        factor[frequent] = 3.5
        head.mul_(factor)
    return model, tokenizer


def load_tiny_tokenizer():
    return load_policy("tiny")[1]


def sample_scripts(monkeypatch, tokenizer, scripts: list[list[str]]) -> None:
    """Replace sampling by scripts: each row writes the turns of its script in order, end tokens included."""

    def sample(model, request):
        episode_tokens, max_completion_length = request.episode_tokens, request.sampling_params.max_completion_length
        tokens = [[tokenizer(text, add_special_tokens=False)["input_ids"] for text in script] for script in scripts]
        queues = [[token for turn in row for token in turn] for row in tokens]
        assert len(queues) == len(episode_tokens.ids), "a script for each row"
        steps = 0
        while not all(episode_tokens.done) and steps < max_completion_length:
            forced = episode_tokens.next_forced_tokens()
            drawn = [
                forced[row]
                if forced[row] >= 0
                else (queues[row].pop(0) if queues[row] and not episode_tokens.done[row] else 0)
                for row in range(len(queues))
            ]
            episode_tokens.append(range(len(queues)), drawn)
            steps += 1
        assert all(episode_tokens.done)
        zeros = torch.zeros(len(queues), max_completion_length)
        return Samples(None, zeros, zeros, steps)

    monkeypatch.setattr(environment_module, "draw_samples", sample)


class Adder:
    """An environment that adds up the results of calls, from a start that `reset` draws."""

    def reset(self, answer: str, **row) -> str:
        self.total, self.start = 0, random.randrange(3)
        return f" from {self.start}"

    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        self.total += a + b
        return self.total

    def get_reward(self) -> float:
        return self.total + self.start / 10


def length_reward(completions, **kwargs):
    return [float(len(messages)) for messages in completions]


def tool_config(**settings):
    usual = {"max_completion_length": 130, "num_generations": 4, "generation_batch_size": 8, "max_steps": 3}
    return make_config(**(usual | settings))


class CountingEnvironment:
    """An environment in which the policy counts up to the answer of the row."""

    def reset(self, answer: str, **row) -> str:
        self.goal, self.count, self.said = int(answer), 0, []
        return f" (to {answer})"

    def step(self, by: int) -> str:
        """Count on.

        Args:
            by: how far
        """
        self.count += by
        return f"now {self.count}"

    def fail(self) -> str:
        """Fail."""
        raise RuntimeError("the world is on fire")

    def get_reward(self) -> float:
        return float(self.count == self.goal)

    def _hidden(self) -> None:
        pass


def writes_much(n: int) -> str:
    """Write.

    Args:
        n: characters
    """
    return "x" * n


async def soon(text: str) -> str:
    """Answer later.

    Args:
        text: what
    """
    await asyncio.sleep(0.01)
    return text.upper()
