"""Record that a served model judges a run, in judge.json, for docs/serving.md.

python notebooks/runs/record_judge.py      two minutes on two cores; needs the extra `serve`

The judge is a copy of the tiny model, taught to say yes to responses that think: as much as so small a model can see.
`think_rate` counts in the same responses what it was taught to see.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from grpo_lab import train as command
from grpo_lab.bench.__main__ import write_json
from grpo_lab.models import load_policy
from grpo_lab.rewards import JUDGE_TEMPLATE
from grpo_lab.rewards.served_judge import SHOWN
from grpo_lab.rollout import sample_completions
from grpo_lab.tasks import find_task, has_thinking

RUN = ["--model", "tiny", "--max_steps", "2", "--num_generations", "8", "--generation_batch_size", "64"]


def teach_to_judge(model, tokenizer) -> None:
    rows, optimizer = find_task("sums").rows("train", 64, 0), torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(0)
    texts = sample_completions(model, tokenizer, [row["prompt"] for row in rows], 4, 64).texts
    by_verdict = {verdict: [] for verdict in ("yes", "no")}
    for number, text in enumerate(texts):
        row = rows[number // 4]
        filled = JUDGE_TEMPLATE.format(prompt=row["prompt"][0]["content"], answer=row["answer"], completion=text)
        by_verdict["yes" if has_thinking(text) else "no"].append([*SHOWN, {"role": "user", "content": filled}])
    for number in range(100):
        verdict = ("yes", "no")[number % 2]
        asked = by_verdict[verdict][number // 2 % len(by_verdict[verdict])]
        ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True).input_ids
        said = [*tokenizer(verdict).input_ids, tokenizer.eos_token_id]
        logits = model(torch.tensor([ids + said])).logits[0, len(ids) - 1 : -1]
        torch.nn.functional.cross_entropy(logits, torch.tensor(said)).backward()
        optimizer.step()
        optimizer.zero_grad()


@contextmanager
def serving(folder: Path, hub: Path) -> Iterator[str]:
    """The address of a server of this folder, on a free port of loopback; at the end the server is gone."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub), "NO_PROXY": "127.0.0.1"}
    words = ["serve", str(folder), "--host", "127.0.0.1", "--port", "0", "--device", "cpu"]
    words, said = [sys.executable, "-m", "transformers.cli.transformers", *words], folder.with_suffix(".log")
    with said.open("wb") as log:
        server = subprocess.Popen(words, env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 300
        while not (found := re.search(r"running on (http://127\.0\.0\.1:\d+)", said.read_text(errors="replace"))):
            assert server.poll() is None and time.monotonic() < end, said.read_text(errors="replace")
            time.sleep(0.1)
        yield f"{found[1]}/v1"
    finally:
        server.kill()
        server.wait()


def judged_run(folder: Path) -> list[dict]:
    model, tokenizer = load_policy("tiny", device="cpu")
    teach_to_judge(model, tokenizer)
    for part in (model, tokenizer):
        part.save_pretrained(folder / "judge")
    with serving(folder / "judge", folder / "hub") as url:
        rewards = ["--reward_funcs", f"judge:{url}", "think", "--reward_weights", "1", "0"]
        assert command.main([*RUN, *rewards, "--output_dir", str(folder / "run")]) == 0
    steps = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    names = ("judge/mean", "judge/frac_none", "think_rate/mean")
    return [{name: step.get(f"rewards/{name}", 0) for name in names} for step in steps]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        record = {"what": "tiny model, seed 0; 2 cores, x86-64, no card", "steps": judged_run(Path(folder))}
    write_json(Path(__file__).with_name("judge.json"), record)
