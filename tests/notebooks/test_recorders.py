"""The recorders of notebooks/runs: arms change what their names say, records are complete, and short runs work."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.tasks import addition_problems
from grpo_lab.trainer.collecting import make_experience
from tests.support.loss_family_record import FAMILY
from tests.support.sampling import sample
from tests.support.scripts import load_script
from tests.support.small_policy import make_policy
from tests.support.tool_policy import call, make_tool_policy

RUNS = Path(__file__).parents[2] / "notebooks" / "runs"
NAMES = (
    "arms",
    "baselines",
    "buys",
    "gym",
    "guess",
    "habit",
    "kl",
    "objective",
    "prompts",
    "qwen",
    "qwen_tools",
    "rewards",
    "s0",
    "smollm2",
    "staleness",
)
recording = load_script("notebooks/runs/recording.py")
recorders = SimpleNamespace(**{name: load_script(f"notebooks/runs/record_{name}.py") for name in NAMES})


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


# ---- an arm changes what its name says


def test_arms_of_05_that_are_compared_differ_in_one_thing():
    arms = recorders.objective.ARMS
    eight = arms["8 updates"].change
    assert arms["8 updates, no clip"].change == eight | {"epsilon": 1.0, "epsilon_high": 1e9}
    for name in ("1 update", "2 updates", "4 updates"):
        assert len(arms[name].change) <= 1 and arms[name].batches == arms["8 updates"].batches
    assert arms["8 updates, small steps"].change == eight | {"learning_rate": 5e-5}
    assert arms["8 updates, no ratio"].change == eight and not arms["8 updates, no ratio"].ratio


def test_arms_of_05_of_equal_budget_make_as_many_updates():
    budgets = {}
    for name in ("8 updates", "fresh"):
        arm = recorders.objective.ARMS[name]
        config = GRPOConfig(**(recorders.objective.COMMON | arm.change))
        budgets[name] = (config.updates_per_step * arm.batches, config.generation_batch_size * arm.batches)
    assert budgets["fresh"] == (128, 8 * budgets["8 updates"][1]) and budgets["8 updates"][0] == 128


def test_arms_of_05b_are_the_whole_settings_of_the_family():
    recorder = recorders.objective
    for name, member in FAMILY.items():
        whole = GRPOConfig(**(recorder.COMMON | recorder.FOUR_UPDATES | member.trl | recorder.FOR_THIS_MODEL))
        arm_config = GRPOConfig(
            **(recorder.COMMON | recorder.ARMS["4 updates" if name == "BNPO" else f"family: {name}"].change)
        )
        differs = {key for key, value in vars(whole).items() if vars(arm_config)[key] != value}
        assert differs == ({"loss_type"} if name == "BNPO" else set())  # with one micro-batch, bnpo equals dapo


def test_arms_of_08_differ_from_the_first_of_their_kind_in_what_they_say():
    arms = recorders.qwen.ARMS
    fields = ("rows", "rewards", "weights", "length", "change", "answer_start", "example")
    for name, expected in {
        "think, half the rate": {"change"},
        "think, no format reward": {"rewards", "weights"},
        "think, entropy bonus": {"change"},
        "think, opened": {"answer_start"},
        "think, worked example": {"example"},
        "think, English": {"rows"},
    }.items():
        assert {key for key in fields if getattr(arms[name], key) != getattr(arms["think"], key)} == expected, name
    half = arms["think, half the rate"].change["learning_rate"]
    assert (
        arms["sums, half the rate"].change == {"learning_rate": half}
        and 2 * half == recorders.qwen.COMMON["learning_rate"]
    )


# ---- what the arms do


def test_sums_of_08_are_right_and_none_is_held_out_and_trained_on():
    recorder = recorders.qwen
    trained, held_out = (recorder.three_numbers(split, seed=seed) for split, seed in (("train", 0), ("test", 1)))
    texts = [[row["prompt"][0]["content"] for row in rows] for rows in (trained, held_out)]
    assert not set(texts[0]) & set(texts[1]) and len(trained) == 400 and len(held_out) == 96
    for row in trained:
        assert str(sum(map(int, re.findall(r"\d+", row["prompt"][0]["content"])))) == row["answer"]


def test_a_reward_of_08_sees_what_the_prompt_opened_and_notes_every_other_answer():
    opened = recorders.qwen.PrefixedReward(recorders.qwen.REWARD_FUNCTIONS["format"], "<think>", every=2)
    completions = ["1+1</think><answer>2</answer>", [{"content": "</think>"}], "<think>1</think><answer>2</answer>"]
    assert opened(completions, question=["a", "b", "c"]) == [1.0, 0.0, 0.0]
    assert opened.samples_by_step == [[["a", f"<think>{completions[0]}", 1.0], ["c", f"<think>{completions[2]}", 0.0]]]


def test_an_edited_thought_of_08_differs_in_its_last_number():
    assert recorders.qwen._edited("<think>9*14=126，126+2=128</think>") == ("<think>9*14=126，126+2=135</think>", "135")
    assert recorders.qwen._edited("<think>7/2=3.5</think>") == ("<think>7/2=10.5</think>", "10.5")


@pytest.mark.slow
def test_a_run_of_08_is_written_step_by_step_and_not_made_twice(tmp_path, monkeypatch):
    common = ["--model", "tiny", "--fast", "--steps", "2", "--seeds", "0", "--arms", "think, opened"]
    assert recorders.qwen.main([*common, "--output_dir", str(tmp_path)]) == 0
    record = read(tmp_path / "qwen.json")
    (run,) = record["runs"]
    assert all(len(values) == 2 for values in run["metrics"].values()) and run["on_the_way"].keys() == {"1"}
    assert run["before"]["sampled"]["n"] == run["after"]["sampled"]["n"] == 2 and record["what"] == "the model 'tiny'"
    assert all(text.startswith("<think>") for step in run["noted"] for _, text, _ in step)
    monkeypatch.setattr(recorders.qwen, "load_policy", None)
    assert recorders.qwen.main([*common, "--output_dir", str(tmp_path)]) == 0
    assert read(tmp_path / "qwen.json") == record


def test_splits_of_qwens_products_share_no_questions():
    recorder = recorders.qwen_tools
    rows = {split: recorder.products(split, 100) for split in ("train", "test")}
    questions = {split: {row["prompt"][-1]["content"] for row in rows[split]} for split in rows}
    assert not questions["train"] & questions["test"]
    for row in rows["train"]:
        (term,) = re.findall(r"[0-9*]+", row["prompt"][-1]["content"])
        assert recorder.calculator(term.replace("*", " * ")) == row["answer"]
    with pytest.raises(ValueError, match="expected whole numbers"):
        recorder.calculator("x+1")


def test_tool_reward_of_08_accepts_only_a_last_turn_that_is_the_number():
    recorder, call = recorders.qwen_tools, [{"type": "function", "function": {"name": "calculator", "arguments": {}}}]
    called = {"role": "assistant", "content": "", "tool_calls": call}
    result = {"role": "tool", "name": "calculator", "content": "12"}
    completions = [
        [called, result, {"role": "assistant", "content": " 12\n"}], [{"role": "assistant", "content": "12"}],
        [called, result], [called, result, called], [called, result, {"role": "assistant", "content": "It is 12"}],
    ]  # fmt: skip
    assert recorder.right_at_last(completions, ["12"] * 5) == [1, 1, 0, 0, 0]
    assert recorder.called(completions) == [1, 0, 1, 1, 1]


@pytest.mark.slow
def test_a_run_with_a_calculator_is_written_step_by_step_and_goes_on(tmp_path, capsys):
    for part in make_tool_policy(calls=(call("calculator", expression="12*34"),)):
        part.save_pretrained(tmp_path / "model")
    words = ["--model", str(tmp_path / "model"), "--fast", "--save_steps", "1", "--output_dir", str(tmp_path / "out")]
    assert recorders.qwen_tools.main([*words, "--steps", "1"]) == 0
    file = tmp_path / "out" / "qwen_tools.json"
    record = read(file)
    assert "before" in record and [*record["runs"]] == [*recorders.qwen_tools.RUNS]
    for run in record["runs"].values():
        assert len(run["metrics"]["reward"]) == 1 and 0 <= run["after"]["rewards/called/mean"] <= 1
    cut = record | {"runs": {"first": {"metrics": record["runs"]["first"]["metrics"]}}}
    file.write_text(json.dumps(cut), encoding="utf-8")
    assert recorders.qwen_tools.main([*words, "--steps", "2", "--runs", "first"]) == 0
    again, reward = read(file), record["runs"]["first"]["metrics"]["reward"]
    assert again["before"] == record["before"] and again["runs"]["first"]["metrics"]["reward"][:1] == reward
    assert len(again["runs"]["first"]["metrics"]["reward"]) == 2 and "accuracy " in capsys.readouterr().out


def test_recorded_judge_of_06_errs_with_its_probabilities_or_on_its_key():
    recorder, texts, answer = recorders.rewards, ["<answer>117</answer>", "<answer>118</answer>", "117"], ["117"] * 3
    recorder.random.seed(0)
    rewards = [recorder.judge(0.3, 0.2)(texts, answer) for _ in range(4000)]
    rates = torch.tensor(rewards).mean(0)
    assert torch.allclose(rates, torch.tensor([0.8, 0.3, 0.3]), atol=0.03)
    for key, expected in {recorder.ends_high: [1.0, 1.0, 0.0], recorder.lacks_answer: [1.0, 0.0, 1.0]}.items():
        assert recorder.judge(key=key)(texts, answer) == expected


def test_the_parts_of_the_loss_of_07_are_the_loss():
    model, tokenizer = make_policy()
    rollout = sample(model, tokenizer, generations=20)
    arms = recorders.arms.ARMS
    whole, first, later = (arms[name].loss_mask(rollout.mask) for name in ("real", "first token", "all but first"))
    assert torch.equal(whole, rollout.mask) and torch.equal(first | later, whole) and not (first & later).any()
    assert (first.sum(-1) == 1).all()


def test_recorded_completions_of_07b_lose_their_end_token_alone():
    model, tokenizer = make_policy()
    rollout = sample(model, tokenizer, generations=20)
    rewards = torch.arange(len(rollout.mask)).float() % 3
    experience = make_experience(rollout, rewards, GRPOConfig(num_generations=20, generation_batch_size=20))
    cut = recorders.smollm2.without_end(experience)
    assert rollout.truncated.any()
    assert torch.equal(experience.loss_mask.sum(-1) - cut.loss_mask.sum(-1), (~rollout.truncated).long())
    assert not (cut.loss_mask & ~experience.loss_mask).any()


@pytest.mark.slow
def test_the_covariances_of_02_give_the_variance_for_any_rewards_and_the_model_is_unchanged(monkeypatch):
    recorder = recorders.baselines
    for name, value in {"PROMPTS": 2, "GROUP": 4, "SCORED": 1}.items():
        monkeypatch.setattr(recorder, name, value)
    model, tokenizer = recorder.load_policy("tiny", device="cpu")
    parameters = list(model.parameters())
    weights = torch.nn.utils.parameters_to_vector(parameters).detach().clone()
    measured = recorder.measure_gradients(model, tokenizer, step=0, batches=3)
    assert torch.equal(torch.nn.utils.parameters_to_vector(parameters), weights)
    gradients, rows = [], addition_problems("train", 20_000)
    for i in range(3):  # with rewards of 2 and 1
        torch.manual_seed(1_000_000 + i)
        _, rewards, logp = recorder.sample_batch(model, tokenizer, rows)
        loss = ((1 + rewards) * logp).mean()
        gradients.append(torch.nn.utils.parameters_to_vector(torch.autograd.grad(loss, parameters)))
    covariance = torch.tensor(measured["covariance"])
    scatter = torch.stack(gradients).var(0).sum()
    assert covariance[:2, :2].sum() == pytest.approx(scatter.item(), rel=1e-3)
    assert sum(count for count, _ in measured["squared_scores"].values()) == 8


def test_records_hold_every_arm_with_every_seed():
    objective = recorders.objective
    record = read(RUNS / "objective.json")
    expected = {(name, seed) for name, arm in objective.ARMS.items() for seed in arm.seeds}
    assert {(run["arm"], run["seed"]) for run in record["runs"]} == expected
    assert record["settings"].items() >= objective.COMMON.items()
    staleness = read(RUNS / "staleness.json")
    for name, part in recorders.staleness.PARTS.items():
        recorded_runs = {
            (run["staleness"], run["correction"], run["seed"], len(run["difference"])) for run in staleness[name]
        }
        updates = part.update_factor * recorders.staleness.UPDATES
        assert recorded_runs == {
            (*vars(arm).values(), seed, updates) for arm in part.arms for seed in range(part.seeds)
        }
    for run in read(RUNS / "tiny_kl.json")["runs"]:
        assert run.items() >= vars(recorders.kl.ARMS[run["arm"]]).items()
        assert len(run["thinking"]) == run["slower"] * recorders.kl.STEPS + 1
    guess = read(RUNS / "guess.json")
    assert guess["settings"] == recorders.guess.SETTINGS and {run["arm"] for run in guess["runs"]} <= set(
        recorders.guess.ARMS
    )
    for setting, arm in {(run["setting"], run["arm"]) for run in guess["runs"]}:
        runs = [run for run in guess["runs"] if (run["setting"], run["arm"]) == (setting, arm)]
        seeds = 2 if setting == "15 and 4, half the rate" else recorders.guess.SEEDS  # fewer, because runs are long
        assert sorted(run["seed"] for run in runs) == list(range(seeds)), (setting, arm)
        assert all(run["steps"][-1] == guess["settings"][setting]["steps"] for run in runs)
    recorded = read(RUNS / "smollm2.json")["settings"]
    assert {name: recorders.habit.SETTINGS.get(name) for name in recorded} == recorded | {"log_kl": None}


def test_arms_with_chosen_prompts_use_equally_many_samples():
    recorder, record = recorders.prompts, read(RUNS / "prompts.json")
    recorded_runs = {(run["arm"], run["seed"]) for run in record["runs"]}
    assert recorded_runs >= {(arm, seed) for arm in recorder.ARMS for seed in range(5)}
    for run in record["runs"]:
        arm = recorder.ARMS[run["arm"]]
        measured = recorder.POOL * recorder.TRIES * bool(arm.measure)
        assert sum(run["samples"]) + measured == recorder.SAMPLES
        if arm.dynamic:  # the last update may have too few samples left
            assert set(run["with_gradient"][:-1]) == {arm.prompts}
        else:
            assert set(run["samples"]) == {arm.prompts * recorder.G}


# ---- what the recorders share


def test_files_of_runs_are_read_in_the_order_of_arms_and_seeds_without_other_measurements(tmp_path):
    files = recording.RunFiles(tmp_path / "runs")
    for arm, seed in [("bf16, slow", 11), ("bf16, slow", 2), ("bf16", 100), ("another", 0)]:
        files.path(arm, seed).write_text(json.dumps({"arm": arm, "seed": seed, "after": {"n": 1}}), encoding="utf-8")
    files.path("bf16", 3).write_text(json.dumps({"arm": "bf16", "seed": 3, "after": None}), encoding="utf-8")
    measurements = iter([{"n": 5}])
    for _ in range(2):  # measured once
        assert files.measure_untrained_once("bf16", measurements.__next__) == {"n": 5}
    runs = [(run["arm"], run["seed"]) for run in files.read_all(["bf16", "bf16, slow"])]
    assert runs == [("bf16", 3), ("bf16", 100), ("bf16, slow", 2), ("bf16, slow", 11)]
    assert files.is_complete("bf16", 100) and not files.is_complete("bf16", 3) and not files.is_complete("bf16", 4)
    assert files.read_untrained(["fp32", "bf16"]) == {"bf16": {"n": 5}}


def test_recorded_numbers_have_four_digits_and_what_is_no_finite_float_stays():
    history = [{"loss": 0.123456, "step": 12345, "kl": math.inf}, {"loss": -98765.4, "step": 12346}]
    assert recording.metric_columns(history, ("kl", "loss", "absent", "step")) == {
        "kl": [math.inf, None], "loss": [0.1235, -98770.0], "step": [12345, 12346],
    }  # fmt: skip
    assert recording.rounded(0.123456, 3) == 0.123 and math.isnan(recording.rounded(math.nan))


def test_a_record_lies_beside_its_recorder_and_of_a_fast_run_in_its_folder(tmp_path):
    parser = recording.recorder_parser("record_x", "Record x.", arms="ab", seeds=[4], fast_help="x", output_dir=True)
    for words, file in {
        (): RUNS / "x.json",
        ("--fast", "--output_dir", str(tmp_path / "out")): tmp_path / "out" / "x.json",
        ("--fast", "--json", str(tmp_path / "y.json")): tmp_path / "y.json",
    }.items():
        args = parser.parse_args(words)
        assert recording.prepare_recording(args, "x.json") == file and file.parent.is_dir()
        assert (args.arms, args.seeds, args.threads) == (["a", "b"], [4], 1)
    with pytest.raises(ValueError, match="seeds is -1"):
        recording.prepare_recording(parser.parse_args(["--seeds", "-1"]), "x.json")


# ---- a short run


def test_higher_or_lower_is_recorded_with_its_tree_where_the_lesson_draws_it(monkeypatch):
    recorder = recorders.guess
    monkeypatch.setitem(recorder.SETTINGS, "15 and 4", recorder.SETTINGS["7 and 3"] | {"steps": 2, "eval_every": 1})
    with_tree, without_tree = (recorder.run(arm, "15 and 4", 0) for arm in ("entropy 0.05", "words pushed"))
    assert with_tree["steps"] == [0, 1, 2]
    assert with_tree["reward"][0] == without_tree["reward"][0] != without_tree["reward"][-1]
    assert "tree" not in without_tree and len(without_tree["episodes"]) == 7
    visits = {turn: sum(value for k, _, value in with_tree["tree"]["visits"] if k == turn) for turn in range(3)}
    assert visits[0] == pytest.approx(1000, abs=7) and visits[0] > visits[1] > visits[2]


@pytest.mark.slow
def test_at_staleness_0_the_sampler_of_10_is_the_trainer_and_at_1_it_is_near(monkeypatch):
    recorder, rows = recorders.staleness, addition_problems("test", 2, seed=1)
    monkeypatch.setitem(recorder.COMMON, "generation_batch_size", 32)
    fresh = recorder.run(recorder.Arm(0, "uncorrected"), seed=0, updates=2, held_out=rows)["difference"]
    stale = recorder.run(recorder.Arm(1, "truncated"), seed=0, updates=2, held_out=rows)["difference"]
    assert max(fresh) < 1e-5 and stale[0] < 1e-5
    assert 1e-3 < stale[1] < 0.1
