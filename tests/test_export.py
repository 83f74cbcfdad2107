"""What `grpo-lab export verl` writes is accepted by verl's own configuration, and means there what it means here."""

import importlib.util
import json
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from datasets import Dataset

from grpo_lab.config import GRPOConfig
from grpo_lab.export import RUN, VERL, main, overrides, verl_rows
from grpo_lab.rewards import score_completions
from grpo_lab.rewards.named import find_rewards
from tests.support.family import FAMILY

ABOUT = (Path("/models/m"), Path("/runs/r"), 30)
SIZES = {"num_generations": 8, "generation_batch_size": 64, "per_device_train_batch_size": 16, "max_steps": 3}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "verl"
    rewards = ["--reward_funcs", "accuracy", "think", "--reward_weights", "1", "0"]
    run = ["--task", "short-sums", *rewards, "--num_iterations", "2", "--eval_steps", "5"]
    assert not main(["verl", str(folder), *run])
    return folder


def in_script(folder: Path) -> dict:
    """The settings in run.sh, read as hydra reads them."""
    script = (folder / "run.sh").read_text(encoding="utf-8")
    words = shlex.split(script.replace("\\\n", " "), comments=True)
    assert words[:3] == ["python3", "-m", "verl.trainer.main_ppo"] and words[-1] == "$@"
    return {name: yaml.safe_load(value) for name, value in (word.split("=", 1) for word in words[3:-1])}


@pytest.mark.parametrize("name", [name for name, member in FAMILY.items() if member.verl])
def test_each_loss_becomes_the_settings_that_notebook_05b_gives_for_verl(name):
    member = FAMILY[name]
    trl = {
        key: value for key, value in member.trl.items() if key != "mask_truncated_completions"
    }  # verl trains on them
    made = overrides(GRPOConfig(**SIZES | trl), *ABOUT)
    for key, value in member.verl.items():
        full = f"actor_rollout_ref.{key}" if key.startswith(("actor.", "rollout.")) else key
        assert made[full] == pytest.approx(value) if isinstance(value, float) else made[full] == value, key


def test_rows_updates_and_steps_are_counted_as_verl_counts_them():
    made = overrides(GRPOConfig(**SIZES, gradient_accumulation_steps=2, num_iterations=3), *ABOUT)
    prompts, mini, epochs = (
        made["data.train_batch_size"],
        made["actor_rollout_ref.actor.ppo_mini_batch_size"],
        made["actor_rollout_ref.actor.ppo_epochs"],
    )
    config = GRPOConfig(**SIZES, gradient_accumulation_steps=2, num_iterations=3)
    assert prompts * made["actor_rollout_ref.rollout.n"] == 64
    assert prompts // mini * epochs == config.updates_per_step == 6
    assert made["trainer.total_training_steps"] == 3


@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed")
def test_verls_own_configuration_knows_every_setting_and_its_type(written):
    from omegaconf import OmegaConf

    package = Path(next(iter(importlib.util.find_spec("verl").submodule_search_locations)))
    theirs = OmegaConf.load(package / "trainer/config/_generated_ppo_trainer.yaml")
    OmegaConf.set_struct(theirs, True)  # what is not there is an error, as hydra has it
    settings = in_script(written)
    for name, value in settings.items():
        before = OmegaConf.select(theirs, name)  # None where it is missing
        OmegaConf.update(theirs, name, value, force_add=False)
        alike = (int, float) if type(before) in (int, float) else type(before)
        assert before is None or OmegaConf.is_list(before) or isinstance(value, alike), name
    with pytest.raises(AttributeError):
        OmegaConf.update(theirs, "actor_rollout_ref.actor.no_such_setting", 1)
    version = (package / "version/version").read_text(encoding="utf-8").strip()
    assert version == VERL, "export is written for another version"


def test_the_folder_holds_the_run(written):
    assert sorted(path.name for path in written.iterdir()) == ["reward.py", "run.sh", "test.parquet", "train.parquet"]
    settings = in_script(written)
    assert settings["data.train_files"] == str(written / "train.parquet")
    assert settings["actor_rollout_ref.actor.ppo_epochs"] == 2
    assert settings["trainer.test_freq"] == 5 and settings["trainer.val_before_train"] is True
    assert subprocess.run(["bash", "-n", written / "run.sh"]).returncode == 0
    assert "not run" in RUN


def test_the_reward_file_pays_what_our_reward_functions_pay(written):
    made = {}
    exec((written / "reward.py").read_text(encoding="utf-8"), made)
    row = Dataset.from_parquet(str(written / "train.parquet"), cache_dir=str(written.parent / "cache"))[7]
    columns = json.loads(row["extra_info"]["columns"])
    assert row["prompt"][-1]["role"] == "user" and row["reward_model"]["ground_truth"] == columns["answer"]
    functions = find_rewards(["accuracy", "think"])
    for text in (columns["answer"], "0", f"<think>a</think>{columns['answer']}", "<think>a</think>1"):
        listed = {name: [value] for name, value in columns.items()}
        answer = [[{"role": "assistant", "content": text}]]
        ours, each, names = score_completions(functions, [[]], answer, [[]], listed, [1.0, 0.0])
        theirs = made["compute_score"](
            data_source="sums", solution_str=text, ground_truth="", extra_info=row["extra_info"] | {"num_turns": None}
        )
        assert theirs == {"score": ours.item()} | dict(zip(names, each[0].tolist(), strict=True))


def test_a_reward_that_does_not_apply_is_an_error_there():
    from grpo_lab.export import verl_reward

    score = verl_reward(["accuracy"], None)
    with pytest.raises(ValueError, match="returned None"):
        score("t", "1", "", {"columns": json.dumps({"answer": None})})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"advantage": "rloo"}, "advantage is 'rloo', which verl"),
        ({"mask_truncated_completions": True}, "mask_truncated_completions is True"),
        ({"loss_type": "vespo"}, "loss_type is 'vespo'"),
        ({"loss_type": "dapo", "importance_sampling_level": "sequence"}, "loss_type is 'dapo' by sequence"),
        ({"loss_type": "cispo", "epsilon_high": 5.0, "delta": 6.0}, "delta is 6.0"),
        ({"scale_rewards": "batch"}, "scale_rewards is 'batch'; expected group, none"),
        ({"lr_scheduler_type": "linear"}, "lr_scheduler_type is 'linear'"),
        ({"beta": 0.1, "kl_estimator": "k3+"}, "kl_estimator is 'k3+'"),
        ({"per_device_train_batch_size": 4}, "per_device_train_batch_size is 4; expected an update of whole groups"),
        ({"precision": "bf16"}, "precision is 'bf16'; expected fp32-master"),
    ],
)
def test_what_verl_lacks_is_refused_by_name(settings, said):
    with pytest.raises(ValueError) as refused:
        overrides(GRPOConfig(**SIZES | settings), *ABOUT)
    assert str(refused.value).startswith(said)


def test_prompts_have_to_be_messages():
    with pytest.raises(ValueError, match="chat_template: the prompts are texts"):
        verl_rows([{"prompt": "1+1=", "answer": "2"}], "sums", "train")


def test_nothing_is_overwritten(written, capsys):
    assert main(["verl", str(written)]) == 2
    assert "has files already; expected a new one" in capsys.readouterr().err


def test_the_files_for_a_cluster_are_whole():
    from accelerate.commands.config.config_args import load_config_from_file

    folder = Path(__file__).parents[1] / "docs" / "cluster"
    assert load_config_from_file(str(folder / "accelerate.yaml")).num_processes == 8
    assert subprocess.run(["bash", "-n", folder / "slurm.sh"]).returncode == 0
    assert "not run" in (folder / "slurm.sh").read_text(encoding="utf-8")


def test_options_of_an_engine_are_refused(tmp_path, capsys):
    for option in (["--use_peft"], ["--use_vllm", "server"], ["--lora_r", "4"]):
        assert main(["verl", str(tmp_path / "new"), *option]) == 2
        assert "expected it only with" in capsys.readouterr().err and not (tmp_path / "new").exists()
