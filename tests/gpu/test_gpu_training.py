"""On a GPU, every mode trains, a reference may stay on the CPU, and an interrupted run resumes."""

import pytest
import torch

from grpo_lab.config.precision import PRECISIONS
from grpo_lab.trainer import PolicyOptimizer, accumulate_gradient, train
from tests.support import known_shape
from tests.support.file_faults import Killed
from tests.support.known_shape import random_policy, skip_unless_possible
from tests.support.small_policy import ROWS, letter_reward, make_config, make_policy, weights

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("mode", PRECISIONS)
def test_each_precision_mode_trains_all_parameters_on_a_gpu(mode, checkpointing):
    skip_unless_possible(mode)
    spec = known_shape.SHORT | {"mode": mode, "checkpointing": checkpointing, "steps": 3}
    measures = known_shape.train_steps(spec | {"shape": "small", "learning_rate": 1e-2}, torch.device("cuda"))
    assert measures["steps"] == 3 and measures["finite"] and measures["nonfinite_steps"] == 0
    assert measures["parameters"] == measures["parameters_with_gradient"] == measures["parameters_moved"]
    assert measures["weights_moved"] > 0.9
    assert measures["logp_difference_max"] < (1e-3 if mode == "fp32" else 0.3)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradient_on_a_gpu_equals_that_on_the_cpu(checkpointing):
    spec = {"mode": "fp32", "rows": 4, "num_generations": 2, "prompt": 8, "completion": 16}
    config = known_shape.make_config(spec | {"checkpointing": checkpointing})
    gradients = []
    for device in (torch.device("cpu"), torch.device("cuda")):
        model = random_policy("small").to(device)
        if checkpointing:
            model.gradient_checkpointing_enable()
            model.train()
        experience = known_shape.make_experience(spec, model.config.vocab_size, device)
        accumulate_gradient(model, PolicyOptimizer(model, config), experience, config)
        gradients.append({name: p.grad.cpu() for name, p in model.named_parameters()})
    for name, expected in gradients[0].items():
        assert (gradients[1][name] - expected).norm() < 1e-3 * expected.norm() + 1e-7, name


def gpu_run(callback=None, **settings):
    model, tokenizer = make_policy()
    model.to("cuda")
    history = train(model, tokenizer, ROWS, letter_reward, make_config(**settings), callback)
    return weights(model), history


def assert_close(first, second):
    for name, value in first.items():
        torch.testing.assert_close(value, second[name], rtol=1e-3, atol=1e-4)


def test_a_reference_on_the_cpu_gives_the_same_run_as_on_the_gpu():
    (weights_gpu, history_gpu), (weights_cpu, history_cpu) = (
        gpu_run(beta=0.1, ref_model_device=device) for device in (None, "cpu")
    )
    assert_close(weights_gpu, weights_cpu)
    kl = history_gpu[-1]["kl"]
    assert kl == pytest.approx(history_cpu[-1]["kl"], rel=1e-2, abs=1e-6) and kl > 0


def test_an_interrupted_gpu_run_resumes(tmp_path):
    def cut(step, metrics):
        if step == 3:
            raise Killed

    settings = {"max_steps": 5, "save_steps": 2}
    whole, history = gpu_run(output_dir=str(tmp_path / "whole"), **settings)
    with pytest.raises(Killed):
        gpu_run(cut, output_dir=str(tmp_path / "cut"), **settings)
    resumed, continued = gpu_run(output_dir=str(tmp_path / "cut"), resume_from_checkpoint=True, **settings)
    assert_close(whole, resumed)
    assert [step["step"] for step in continued] == [1, 2, 3, 4, 5]
    assert continued[-1]["reward"] == pytest.approx(history[-1]["reward"], rel=1e-3)
