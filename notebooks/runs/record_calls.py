"""Record what chat templates and tokenizers do to the ids of an episode, in calls.json, for notebook 11.

    python notebooks/runs/record_calls.py            2 minutes on one core; needs SmolLM2, Qwen and TRL on the machine

For the templates of Qwen2.5 and Qwen3, the record shows how a call and its result are written, and how many token ids
of the first turn stay the same as the conversation grows. For sampled completions, it counts those whose ids change
when they are decoded and encoded again, and how many nats the policy's log-probability of each of them changes by.
"""

import json
import sys
from importlib.resources import files

import torch
from recording import prepare_recording, recorder_parser
from transformers import AutoTokenizer

from grpo_lab.base import command
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.models import load_policy
from grpo_lab.models.folders import find_model
from grpo_lab.rollout import sample_completions

QUESTIONS = [
    "Why is the sky blue?", "What does a bee eat?", "Write a line about the sea.", "How do I boil an egg?",
    "Name three rivers in Europe.", "What is 17 + 58?", "Who wrote Hamlet?", "Give me a Python loop.",
]  # fmt: skip
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "integer", "description": f"the number {name}"} for name in "ab"},
            "required": ["a", "b"],
        },
    },
}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 17, "b": 58}}}
MESSAGES = [
    {"role": "user", "content": "What is 17 + 58?"},
    {"role": "assistant", "content": "<think>\nI add them.\n</think>\n\n", "tool_calls": [CALL]},
    {"role": "tool", "name": "add", "content": "75"},
    {"role": "assistant", "content": "It is 75."},
    {"role": "user", "content": "And 10 more?"},
]


def render_calls(tokenizer, template: str | None) -> dict:
    """Return the template's text with the call, its number of ids, and how many of them stay as messages are added."""

    def ids(count: int) -> list[int]:
        text = tokenizer.apply_chat_template(MESSAGES[:count], tools=[TOOL], chat_template=template, tokenize=False)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    first, text = ids(2), tokenizer.apply_chat_template(
        MESSAGES[:3], tools=[TOOL], chat_template=template, tokenize=False, add_generation_prompt=True
    )  # fmt: skip
    columns = {}
    for count, name in ((3, "the result"), (5, "the next question")):
        longer = ids(count)
        columns[name] = next((i for i, pair in enumerate(zip(first, longer)) if pair[0] != pair[1]), len(first))  # noqa: B905
    return {"text": text, "ids": len(first), "kept": columns}


@torch.no_grad()
def completion_logp(model, prompt: list[int], completion: list[int]) -> float:
    """Return the policy's log-probability of a completion, in nats."""
    logp = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return logp.gather(-1, torch.tensor(completion)[:, None]).sum().item()


def encode_again(name: str, completions: int, length: int) -> dict:
    """Sample, decode and encode completions again; count those whose ids change, and compare their probabilities."""
    model, tokenizer = load_policy(name, device="cpu")
    torch.manual_seed(0)
    prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
    rollout = sample_completions(model, tokenizer, prompts, completions // len(prompts), length)
    changed = 0
    examples = []
    nats = []
    for row, mask, p in zip(rollout.completion_ids, rollout.mask, rollout.prompt_of_row, strict=True):
        ids, prompt = row[mask].tolist(), rollout.prompt_ids[p][rollout.prompt_mask[p]].tolist()
        again = tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"]
        if ids != again:
            changed += 1
            split = next(i for i, pair in enumerate(zip([*ids, -1], [*again, -1])) if pair[0] != pair[1])  # noqa: B905
            nats.append(round(completion_logp(model, prompt, again) - completion_logp(model, prompt, ids), 2))
            examples.append([tokenizer.convert_ids_to_tokens(row_ids[split : split + 3]) for row_ids in (ids, again)])
    return {
        "completions": len(rollout.mask),
        "tokens": int(rollout.mask.sum()),
        "other": changed,
        "nats": nats,  # log-probability of the ids encoded again, minus that of the sampled ids
        "examples": examples[:5],
    }


@command("notebooks/runs/record_calls.py")
def main(arguments: list[str] | None = None) -> None:
    parser = recorder_parser("record_calls", __doc__)
    parser.add_argument("--completions", type=int, default=96)
    args = parser.parse_args(arguments)
    file = prepare_recording(args, "calls.json")
    qwen = AutoTokenizer.from_pretrained(find_model("qwen").folder)
    qwen3 = (files("trl") / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    record = {
        "machine": describe_machine("cpu"),
        "templates": {"Qwen2.5": render_calls(qwen, None), "Qwen3": render_calls(qwen, qwen3)},
        "again": {name: encode_again(name, args.completions, 32) for name in ("tiny", "smollm2")},
    }
    write_json(file, record)
    print(json.dumps(record["again"], indent=1, ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
