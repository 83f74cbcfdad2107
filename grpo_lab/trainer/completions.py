"""What the policy says, for people to read: a small table of the best and the worst, and records of all of a step."""

import sys

from grpo_lab.rewards import prompt_text
from grpo_lab.trainer.experience import Experience

WIDTH = 100  # letters of a prompt with its completion, in the table


def completion_records(step: int, rows: list[dict], experience: Experience, names: list[str]) -> list[dict]:
    """One record for each completion: step, prompt, completion, rewards by function, reward and advantage.

    A reward is None where it does not apply.
    """
    columns = (
        experience.rollout.prompt_of_row.tolist(),
        experience.rollout.texts,
        experience.rewards_per_func.tolist(),
        experience.rewards.tolist(),
        experience.advantages.tolist(),
    )
    return [
        {
            "step": step,
            "prompt": rows[prompt]["prompt"],
            "completion": text,
            "rewards": {name: _known(value) for name, value in zip(names, per_func, strict=True)},
            "reward": _known(reward),
            "advantage": advantage,
        }
        for prompt, text, per_func, reward, advantage in zip(*columns, strict=True)
    ]


def best_and_worst(records: list[dict], count: int | None) -> str:
    """A table of so many records, half of them with the highest rewards and half with the lowest, best first.

    None is all of them. What the policy wrote is quoted: no letter of it moves the cursor or ends a line.
    """
    ranked = sorted((r for r in records if r["reward"] is not None), key=lambda r: -r["reward"])
    high, low = (len(ranked), 0) if count is None or count >= len(ranked) else ((count + 1) // 2, count // 2)
    chosen = ranked[:high] + ranked[len(ranked) - low :]
    which = "the best and the worst" if low else "the best"
    lines = [
        f"step {records[0]['step']}: {which} of {len(records)} completions",
        "  reward  advantage  prompt, completion",
    ]
    for record in chosen:
        lines.append(f"{record['reward']:8.3f}  {record['advantage']:9.3f}  {_said(record)}")
    return _printable("\n".join(lines))


def _said(record: dict) -> str:
    asked = record["prompt"] if isinstance(record["prompt"], str) else record["prompt"][-1:]  # not what came before it
    prompt, completion = _short(prompt_text(asked), WIDTH // 3), record["completion"]
    return f"{prompt} {_short(completion, WIDTH - len(prompt))}"


def _short(text: str, width: int) -> str:
    quoted = repr(text)
    return quoted if len(quoted) <= width else f"{quoted[: width - 4]}...{quoted[-1]}"


def _printable(text: str) -> str:
    """With letters that the terminal does not have spelt out."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _known(value: float) -> float | None:
    return None if value != value else value
