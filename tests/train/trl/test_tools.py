"""Tests that TRL makes the same ids, masks, rewards and gradients of an episode with tools as our own loop.

Both get the same texts of the policy for each turn. TRL's own loop then calls the tools, appends their results and
makes the masks. Before each turn, the tokens so far are compared with those in our rollout.
"""

import copy
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from transformers.utils import get_json_schema

from grpo_lab.base.checks import InputError
from grpo_lab.models import add_lora
from grpo_lab.rollout.environments.factory import load_tools
from grpo_lab.rollout.environments.text_environment import TextEnvironment
from grpo_lab.rollout.environments.tools import ToolEnvironment
from grpo_lab.trainer import collecting, train
from grpo_lab.trainer.evaluation import evaluate_policy
from tests.parity.engines import require_engine
from tests.support.bubblewrap import needs_bubblewrap
from tests.support.replay import record_updates
from tests.support.small_policy import make_config, weights
from tests.support.tool_policy import (
    END,
    ROWS,
    CountingEnvironment,
    add,
    call,
    make_tool_policy,
    sample_scripts,
    soon,
    writes_much,
)

require_engine("trl")
trl_run = pytest.importorskip("grpo_lab.train.trl.run")
templates = require_engine("trl.chat_template_utils")
pytestmark = pytest.mark.filterwarnings("ignore:You are using 'environment_factory'")
T = 240
LORA = {"lora_r": 2, "lora_alpha": 6, "lora_dropout": 0.0, "lora_target_modules": ["q_proj", "down_proj"]}
SCRIPTS = [
    [call("add", a=1, b=2) + END, "It is 3." + END],
    ["no" + END],
    ["Well.\n" + call("step", by=1) + "\n" + call("step", by=2) + END, call("fail") + END],
    [call("add", a=1) + END, "oh" + END],
    [call("nix") + END, call("soon", text="a") + END],
    [call("step", by=40) + END, "abc" * 120],  # cut off by the length limit
    [call("writes_much", n=700) + END],  # the result has no room
    ["42" + END],
]


def messages_reward(completions, prompts, answer, **kwargs):
    """A reward that depends on everything that a reward function gets of a conversation."""
    return [
        len(completion) + sum(len(message["content"]) for message in completion if message["role"] == "tool") / 50
        + 0.1 * len(prompt[-1]["content"]) + 0.01 * int(a)
        for completion, prompt, a in zip(completions, prompts, answer, strict=True)
    ]  # fmt: skip


def environment_reward(completions, environments, **kwargs):
    return [float(environment.count) for environment in environments]


def make_trl_policy(tools: list[Callable]):
    """Return a policy with TRL's template, in which each long line about the tools is a token: attention is short."""
    _, tokenizer = make_tool_policy(template=templates.qwen2_5_chat_template)
    messages, schemas = [{"role": "user", "content": ""}], [get_json_schema(tool) for tool in tools]
    text = tokenizer.apply_chat_template(messages, tools=schemas, tokenize=False)
    lines = tuple(line for line in text.splitlines() if len(line) > 20 and END not in line)
    return make_tool_policy(template=templates.qwen2_5_chat_template, rare_tokens=lines)


@pytest.fixture
def policy(monkeypatch):
    model, tokenizer = make_trl_policy([add, soon, writes_much, CountingEnvironment().step, CountingEnvironment().fail])
    sample_scripts(monkeypatch, tokenizer, SCRIPTS)
    return model, tokenizer


def next_turn(rollout, row: int, position: int) -> tuple[list[int], list[int], int]:
    """Return the tokens before the next turn of the policy in a row, the turn, and the position in the row after it.

    position: The position up to which the row is replayed.
    """
    length = int(rollout.mask[row].sum())
    ids, is_policy = rollout.completion_ids[row, :length].tolist(), rollout.policy_mask[row, :length].tolist()
    start = next((t for t in range(position, length) if is_policy[t]), length)
    end = next((t for t in range(start, length) if not is_policy[t]), length)
    turn_numbers = rollout.turn_of_token[row, start:length].tolist()
    end = min(end, start + sum(number == turn_numbers[0] for number in turn_numbers))
    prompt = rollout.prompt_of_row[row]
    prompt_ids = rollout.prompt_ids[prompt][rollout.prompt_mask[prompt]].tolist()
    return prompt_ids + ids[:start], ids[start:end], end


def replay_in_trl_loop(monkeypatch, rollouts):
    """Make TRL's trainer take each turn of the policy from our rollouts; return the list of its scored batches."""
    outputs, make = [], trl_run.make_trainer

    def make_replaying(*arguments):
        trainer = make(*arguments)
        score = trainer._generate_and_score_completions
        positions: list[int] = []  # position up to which each row is replayed; empty before the first turn

        def generate(prompt_ids, images, fields, num_generations, **_):
            rollout = rollouts[len(outputs)]
            if not positions:
                positions.extend([0] * len(prompt_ids))
            waiting_rows, turns = list(range(len(positions))), []
            for prefix in prompt_ids:
                for row in waiting_rows:
                    tokens_before, turn, end = next_turn(rollout, row, positions[row])
                    if prefix == tokens_before:
                        break
                else:
                    raise AssertionError("TRL goes on from other tokens than we do")
                waiting_rows.remove(row)
                turns.append(turn)
                positions[row] = end
            return turns, None

        def scored(inputs):
            output = score(inputs)
            outputs.append(output)
            positions.clear()
            return output

        trainer._generate_single_turn, trainer._generate_and_score_completions = generate, scored
        return trainer

    monkeypatch.setattr(trl_run, "make_trainer", make_replaying)
    return outputs


@pytest.mark.parametrize(
    ("settings", "lora"),
    [
        ({}, None),
        ({"loss_type": "grpo", "num_iterations": 2, "max_tool_calling_iterations": 1}, None),
        ({"loss_type": "dr_grpo", "importance_sampling_level": "sequence", "num_iterations": 2}, None),
        ({"beta": 0.1, "num_iterations": 2}, LORA),
    ],
    ids=["dapo", "one call", "sequences", "adapters"],
)
def test_the_same_episodes_have_the_same_masks_rewards_and_gradients(settings, lora, policy, monkeypatch):
    model, tokenizer = policy
    usual = {"max_completion_length": T, "max_steps": 2, "precision": "fp32", "reward_weights": [1.0, 0.5]}
    config = make_config(**(usual | settings))
    arguments = [ROWS, [messages_reward, environment_reward], config]
    agent = {"tools": [add, soon, writes_much], "environment_factory": CountingEnvironment}
    policy, rollouts, sample = copy.deepcopy(model), [], collecting.sample_rollout
    if lora is not None:
        pytest.importorskip("peft")
        add_lora(model, seed=config.seed, **lora)
    with monkeypatch.context() as patch, record_updates() as our_updates:
        patch.setattr(collecting, "sample_rollout", lambda *a, **k: rollouts.append(sample(*a, **k)) or rollouts[-1])
        ours = train(model, tokenizer, *arguments, **agent)
    outputs = replay_in_trl_loop(monkeypatch, rollouts)
    with record_updates() as their_updates:
        theirs = trl_run.train(policy, tokenizer, *arguments, **agent, lora=lora)
    assert tokenizer.response_template is None, "as it was"
    assert len(rollouts) == len(outputs) == 2
    for rollout, output in zip(rollouts, outputs, strict=True):
        length = rollout.mask.shape[1]
        assert output["completion_ids"].shape[1] == length
        assert torch.equal(output["completion_mask"].bool(), rollout.mask)
        assert torch.equal(output["completion_ids"][rollout.mask], rollout.completion_ids[rollout.mask])
        assert torch.equal((output["completion_mask"] * output["tool_mask"]).bool(), rollout.policy_mask)
        assert (rollout.mask & ~rollout.policy_mask).any()
    assert len(our_updates) == len(their_updates) == config.updates_per_step * 2
    for our_update, their_update in zip(our_updates, their_updates, strict=True):
        torch.testing.assert_close(their_update["gradients"], our_update["gradients"], rtol=2e-3, atol=5e-6)
    torch.testing.assert_close(weights(policy), weights(model), rtol=1e-4, atol=2e-4)
    defined_otherwise = {"step_time", "entropy", "grad_norm", "completions/clipped_ratio"}
    defined_otherwise |= {name for name in ours[0] if "terminated" in name}
    shared = ours[0].keys() & theirs[0].keys() - defined_otherwise
    needed = {
        "loss",
        "reward",
        "rewards/CountingEnvironment/mean",
        "rewards/environment_reward/mean",
        "tools/call_frequency",
    }
    assert needed | {"tools/failure_frequency", "completions/mean_length", "num_tokens"} <= shared
    for our_line, their_line, rollout in zip(ours, theirs, rollouts, strict=True):
        for name in sorted(shared):
            assert their_line[name] == pytest.approx(our_line[name], rel=1e-3, abs=1e-5), name
        # An episode counts as cut off if a tool's result had no room. TRL looks only at its last token, an end token.
        last = rollout.completion_ids.gather(1, rollout.mask.sum(-1, keepdim=True) - 1)[:, 0]
        left_out = (rollout.truncated & (last == tokenizer.eos_token_id)).float().mean().item()
        assert 0 < left_out == our_line["completions/clipped_ratio"] - their_line["completions/clipped_ratio"]
        assert rollout.turn_of_token.max() >= 1 and rollout.truncated.sum() < 5


PACKAGE_SCRIPTS = [
    [call("query", sql="SELECT sum(euros) FROM things") + END, "It is 64." + END],
    [call("query", sql="DROP TABLE things") + END, "oh" + END],
    [call("calculator", expression="12*(3+4)") + END, "84" + END],
    [call("run_python", code="print(6 * 7)") + END, call("run_python", code="1 / 0") + END, "42" + END],
    ["no" + END],
    [call("query", sql="SELECT name FROM things") + "\n" + call("calculator", expression="1/0") + END, "so" + END],
    [call("run_python", code="print('x' * 5000)") + END],  # the result has no room
    [call("query") + END, "abc" * 120],
]


def calculator(expression: str) -> str:
    """Compute an expression.

    Args:
        expression: The expression, such as 12*7.
    """
    return str(eval(expression, {"__builtins__": {}}))


@needs_bubblewrap
def test_packaged_tools_work_on_the_trl_engine(tmp_path, monkeypatch):
    """Episodes with `python`, `sqlite:FILE` and a calculator have the same results, masks and loss."""
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE things (name TEXT, euros INTEGER)")
        connection.executemany("INSERT INTO things VALUES (?, ?)", [("chair", 45), ("lamp", 19)])
        connection.commit()
    tools = load_tools(["python", f"sqlite:{tmp_path / 'shop.db'}"])
    model, tokenizer = make_trl_policy([*tools, calculator])
    sample_scripts(monkeypatch, tokenizer, PACKAGE_SCRIPTS)
    policy, rollouts, sample = copy.deepcopy(model), [], collecting.sample_rollout
    config = make_config(max_completion_length=400, max_steps=1, precision="fp32")
    arguments = [ROWS, [messages_reward], config]
    agent = {"tools": [*tools, calculator]}
    with monkeypatch.context() as patch, record_updates() as expected:
        patch.setattr(collecting, "sample_rollout", lambda *a, **k: rollouts.append(sample(*a, **k)) or rollouts[-1])
        (ours,) = train(model, tokenizer, *arguments, **agent)
    (rollout,), outputs = rollouts, replay_in_trl_loop(monkeypatch, rollouts)
    with record_updates() as trl_updates:
        (theirs,) = trl_run.train(policy, tokenizer, *arguments, **agent)
    results = [[m["content"] for m in e.messages if m["role"] == "tool"] for e in rollout.episodes]
    assert (
        results[0] == ["64"]
        and results[2] == ["84"]
        and results[3] == ["42", "line 1: ZeroDivisionError: division by zero"]
    )
    assert "only one SELECT is allowed" in results[1][0] and results[5][0] == "chair\nlamp" and not results[6]
    (output,) = outputs
    assert torch.equal(output["completion_mask"].bool(), rollout.mask)
    assert torch.equal(output["completion_ids"][rollout.mask], rollout.completion_ids[rollout.mask])
    assert torch.equal((output["completion_mask"] * output["tool_mask"]).bool(), rollout.policy_mask)
    torch.testing.assert_close(trl_updates[0]["gradients"], expected[0]["gradients"], rtol=2e-3, atol=5e-6)
    for name in ("loss", "reward", "tools/call_frequency", "tools/failure_frequency"):
        assert theirs[name] == pytest.approx(ours[name], rel=1e-3, abs=1e-5), name


def with_note(completions, log_extra, **kwargs):
    log_extra("messages", [len(completion) for completion in completions])
    return [float(len(completion)) for completion in completions]


@pytest.mark.slow
def test_held_out_episodes_are_evaluated_and_episodes_are_written_down(tmp_path, capsys):
    model, tokenizer = make_tool_policy(template=templates.qwen2_5_chat_template)
    settings = {"max_completion_length": 60, "max_steps": 2, "eval_steps": 2, "precision": "fp32"}
    settings |= {"log_completions": True, "logging_steps": 1}
    config = make_config(output_dir=str(tmp_path / "out"), **settings)
    agent = {"tools": [add], "environment_factory": CountingEnvironment}
    history = trl_run.train(model, tokenizer, ROWS, with_note, config, eval_dataset=ROWS, **agent)
    measured = evaluate_policy(
        model, tokenizer, ROWS, with_note, config, ToolEnvironment(**agent), cache_implementation="dynamic"
    )
    assert "eval/reward" not in history[0] and measured.items() <= history[1].items()
    assert {"eval/rewards/with_note/mean", "eval/rewards/CountingEnvironment/mean"} <= measured.keys()
    lines = (tmp_path / "out" / "completions.jsonl").read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert [record["step"] for record in records] == [1] * 8 + [2] * 8
    for record in records:
        turns, prompt = record["turns"], record["prompt"]
        assert [*turns[0]] == ["policy"] and len(turns) == record["extra"]["messages"] == record["rewards"]["with_note"]
        assert record["reward"] == sum(record["rewards"].values()) and prompt[-1]["content"].endswith(")")
        assert record["completion"] == "\n".join(text for turn in turns for text in turn.values())
    results = [turn["environment"] for record in records for turn in record["turns"] if "environment" in turn]
    assert {"3", "42"} & {*results} and any('"name": "add"' in record["completion"] for record in records)
    assert "step 2: the best and the worst of 8 completions" in capsys.readouterr().out


def test_a_text_environment_is_refused_on_trl(policy):
    config = make_config(max_steps=1, precision="fp32")
    with pytest.raises(InputError, match="engine is trl, which has no environment that replies within a completion"):
        trl_run.train(*policy, ROWS, messages_reward, config, environment=TextEnvironment(list))
