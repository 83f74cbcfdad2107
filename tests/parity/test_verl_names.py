"""docs/cluster.md and its files name verl's settings and defaults correctly, and their reward is accuracy_reward."""

import ast
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_lab.rewards import accuracy_reward
from tests.parity.verl_names import PARTS, kept_names

DOCS = Path(__file__).parents[2] / "docs"
VERSION, NAMES = kept_names()
PAGE = (DOCS / "cluster.md").read_text(encoding="utf-8")
COMMAND = (DOCS / "cluster" / "verl.sh").read_text(encoding="utf-8")
REWARD = DOCS / "cluster" / "verl_reward.py"
NAME = re.compile(rf"`((?:{'|'.join(PARTS)})\.[\w.]+)`")


def test_verl_version_is_the_same_on_the_page_and_in_its_files():
    for text in (PAGE, COMMAND, REWARD.read_text(encoding="utf-8")):
        assert {VERSION} == set(re.findall(r"verl (\d+\.\d+\.\d+)", text))


def test_every_name_on_the_page_is_one_of_verls_configuration():
    names = NAME.findall(PAGE)
    assert len(set(names)) > 40 and not set(names) - NAMES.keys()
    section = PAGE.partition("## verl")[2]
    others = set(re.findall(r"`([a-z_]+\.[a-z_.]+)`", section)) - set(names)
    assert not others, "a name without its whole prefix"


def test_the_command_sets_existing_names_to_values_of_the_same_type():
    settings = dict(re.findall(r"^    ([\w.]+)=(\S+?)(?: \\)?$", COMMAND, re.MULTILINE))
    assert len(settings) > 25 and not settings.keys() - NAMES.keys()
    for name, value in settings.items():
        default, value = NAMES[name], value.strip("'")
        if isinstance(default, bool):
            assert value in ("True", "False"), name
        elif isinstance(default, int | float):
            assert isinstance(ast.literal_eval(value), int | float), name
        elif isinstance(default, list):
            assert isinstance(json.loads(value), list), name
    assert NAMES["actor_rollout_ref.rollout.name"] == "???" and "actor_rollout_ref.rollout.name" in settings


@pytest.mark.parametrize(
    ("name", "default"),
    [("optim.weight_decay", 0.01), ("clip_ratio_c", 3.0), ("strategy", "fsdp"), ("loss_agg_mode", "token-mean")],
)
def test_defaults_named_on_the_verl_page_are_those_of_verl(name, default):
    assert NAMES[f"actor_rollout_ref.actor.{name}"] == default
    assert NAMES["actor_rollout_ref.rollout.tensor_model_parallel_size"] == 2
    assert NAMES["reward.custom_reward_function.name"] == "compute_score"


@pytest.fixture(scope="module")
def compute_score():
    spec = importlib.util.spec_from_file_location("verl_reward", REWARD)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_score


def test_verl_reward_file_imports_only_the_standard_library():
    tree = ast.parse(REWARD.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {name.name for node in imports if isinstance(node, ast.Import) for name in node.names}
    assert len(imports) == len(modules) and modules <= sys.stdlib_module_names


PIECES = [
    "<answer>",
    "</answer>",
    "<think>",
    "</think>",
    "1,000",
    "1000",
    "１２",
    "12",
    "10²",
    "2½",
    " ",
    "\n",
    "a",
    "é",
    ".",
]


@given(st.lists(st.sampled_from(PIECES)).map("".join), st.lists(st.sampled_from(PIECES), min_size=1).map("".join))
def test_verl_reward_file_equals_accuracy_reward(compute_score, completion, answer):
    for text in (completion, f"<answer>{completion}</answer>", f"<think>x</think><answer> {answer}\n</answer>"):
        (expected,) = accuracy_reward([text], answer=[answer])
        assert compute_score("task", text, answer, {"index": 0}) == expected


def test_verl_reward_scores_a_right_and_a_wrong_answer(compute_score):
    assert compute_score("gsm8k", "<think>5 + 7</think><answer>12</answer>", "12") == 1.0
    assert compute_score("gsm8k", "<answer>12</answer><answer></answer>", "12") == 0.0
