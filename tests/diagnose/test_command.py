"""The command and the glossary, on folders that a run has written."""

import json
import re
from pathlib import Path

import pytest

from grpo_lab.diagnose.__main__ import GLOSSARY, main
from grpo_lab.trainer import train
from tests.support.small_policy import ROWS, length_reward_or_none, letter_reward, make_config, make_policy

ROOT = Path(__file__).parents[2]


def written(folder: Path, **columns) -> str:
    """Write a folder with the log of 16 steps with a rising reward."""
    folder.mkdir()
    rows = [{"step": i + 1, "reward": i / 16, "grad_norm": 1.0} | columns for i in range(16)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(folder)


def test_diagnose_command_prints_one_line_and_unchecked_rules_for_a_healthy_run(tmp_path, capsys):
    run_of = written(tmp_path / "healthy")
    assert main([run_of]) == 0
    first, blind = capsys.readouterr().out.splitlines()
    assert first == f"{run_of}: no findings up to step 16 (reward 0.0938 -> 0.844)"
    assert blind.startswith("not checked, because") and "kl_explosion (kl)" in blind and "gradient_spikes" not in blind


def test_findings_are_printed_with_causes_and_remedies_and_are_exit_code_1(tmp_path, capsys):
    run_of = written(tmp_path / "broken", loss=None)
    assert main([run_of]) == 1
    text = capsys.readouterr().out
    assert "1 finding up to" in text and "1. nonfinite_steps, from step 1: 16 updates in 16 steps had" in text
    assert "may come from: " in text and "try: " in text and "source: " in text


# ---- the glossary

PAGE = GLOSSARY.read_text(encoding="utf-8")
METRICS = dict(re.findall(r"^\| `(.+?)` \| (\w+) \|", PAGE, re.MULTILINE))  # name -> ours, TRL or both


def explained(name: str) -> bool:
    reward = re.sub("^rewards/.*/", "rewards/<name>/", name)
    return reward in METRICS or (name.startswith("eval/") and explained(name.removeprefix("eval/")))


def test_metrics_page_is_that_of_the_glossary(capsys):
    """`python -m grpo_lab.diagnose --glossary > docs/metrics.md` writes it."""
    assert main(["--glossary"]) == 0
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == capsys.readouterr().out and len(METRICS) == page.count("\n| `") > 40


def test_every_metric_that_a_run_writes_is_in_the_glossary():
    """The run has held-out rows, a KL, and a reward that does not always apply."""
    config = make_config(eval_steps=1, generation_batch_size=12, beta=0.1)
    rows = train(*make_policy(), ROWS, [letter_reward, length_reward_or_none], config, eval_dataset=ROWS[:2])
    names = {name for row in rows for name in row} - {"step"}
    assert {"kl", "eval/reward", "rewards/letter_reward/std"} <= names
    assert not [name for name in names if not explained(name)] and not explained("eval/anything")


def test_every_metric_that_trl_writes_is_in_the_glossary():
    pytest.importorskip("trl")
    from trl.trainer import grpo_trainer

    source = Path(grpo_trainer.__file__).read_text(encoding="utf-8")
    names = set(re.findall(r'_metrics\[(?:mode|"train")\]\["([^"]+)"\]', source))
    names = {name for name in names if not name.startswith("tools/")}  # metrics of tools are not compared
    assert len(names) > 20 and not [name for name in names if not explained(name)]
    assert {name for name, origin in METRICS.items() if origin == "TRL"} <= names | {"policy_loss"}
