"""A folder of this package behind `transformers serve`: asked by the openai client, and as the judge of a run."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch

from grpo_lab import train as command
from grpo_lab.chat import reply
from grpo_lab.rewards import JUDGE_TEMPLATE
from grpo_lab.rewards.served_judge import SHOWN
from grpo_lab.rollout import sample_completions
from grpo_lab.tasks import find_task, has_thinking

openai = pytest.importorskip("openai")
pytest.importorskip("fastapi")
pytestmark = pytest.mark.slow


@contextmanager
def serving(folder, hub):
    """The address of a server of this folder, on a free port of loopback; at the end the server is gone."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub), "NO_PROXY": "127.0.0.1"}
    words = ["serve", str(folder), "--host", "127.0.0.1", "--port", "0", "--device", "cpu"]
    said = folder.parent / f"{folder.name}.log"
    with said.open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "transformers.cli.transformers", *words], env=environment, stdout=log, stderr=log
        )
    try:
        end = time.monotonic() + 300
        while not (found := re.search(r"running on (http://127\.0\.0\.1:\d+)", said.read_text(errors="replace"))):
            assert server.poll() is None and time.monotonic() < end, said.read_text(errors="replace")
            time.sleep(0.1)
        yield f"{found[1]}/v1"
    finally:
        server.kill()
        server.wait()


def save(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_the_openai_client_reads_what_chat_writes_streaming_or_not(tiny, tmp_path):
    questions, hub = ("10+20+30=?", "3+4=?"), tmp_path / "hub"
    with serving(save(*tiny, tmp_path / "policy"), hub) as url:
        client = openai.OpenAI(base_url=url, api_key="none", timeout=120)
        for question in questions:
            expected = reply(*tiny, question)
            asked = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 64}
            asked["model"] = str(tmp_path / "policy")
            whole = client.chat.completions.create(**asked).choices[0]
            assert (whole.message.content, whole.finish_reason) == (expected, "stop")
            pieces = [one.choices[0].delta.content for one in client.chat.completions.create(**asked, stream=True)]
            assert "".join(piece or "" for piece in pieces) == expected and len(pieces) > 4
        with pytest.raises(openai.InternalServerError):
            client.models.list()  # there is no cache of the hub; docs/serving.md says so
        hub.mkdir()
        assert client.models.list().data == []
    with pytest.raises(openai.APIConnectionError):
        client.models.list()


def teach_to_judge(model, tokenizer):
    """Whether a response thinks, in place of whether it is right: as much as so small a model can see."""
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


def test_a_served_model_judges_a_run(tiny, tmp_path):
    teach_to_judge(*tiny)
    with serving(save(*tiny, tmp_path / "judge"), tmp_path / "hub") as url:
        words = ["--reward_funcs", f"judge:{url}", "think", "--reward_weights", "1", "0", "--max_steps", "2"]
        words += ["--num_generations", "8", "--generation_batch_size", "64", "--disable_tqdm", "true"]
        assert command.main([*words, "--output_dir", str(tmp_path / "run")]) == 0
    for line in (tmp_path / "run/metrics.jsonl").read_text(encoding="utf-8").splitlines():
        metrics = json.loads(line)
        assert metrics["rewards/judge/mean"] == pytest.approx(metrics["rewards/think_rate/mean"], abs=0.1)
        assert metrics.get("rewards/judge/frac_none", 0) < 0.1 and 0 < metrics["reward"] < 1
