"""LoRA in our own loop: gradients as peft's, frozen weights untouched, the model without the adapter as reference."""

import copy
import json
import shutil
from dataclasses import replace

import pytest
import torch

from grpo_lab.base.checks import InputError
from grpo_lab.chat import reply
from grpo_lab.evaluate import evaluate
from grpo_lab.logprobs import token_logprobs
from grpo_lab.models import __main__ as models_command
from grpo_lab.models import add_lora, load_policy
from grpo_lab.models.adapters import has_adapter, without_adapter
from grpo_lab.objective import policy_loss
from grpo_lab.trainer import train
from grpo_lab.trainer.collecting import collect
from grpo_lab.trainer.experience import logprobs_without_gradient
from grpo_lab.trainer.loop import accumulate_gradient
from grpo_lab.trainer.optim import PolicyOptimizer
from tests.support.refusals import refusal_of
from tests.support.resuming import SETTINGS_WITH_EVERY_PART, assert_same_end, file_names
from tests.support.small_policy import (
    ROWS,
    letter_reward,
    make_config,
    make_exact,
    make_policy,
    same_weights,
    save_policy,
    weights,
)  # fmt: skip

peft = pytest.importorskip("peft")
LORA = {"lora_r": 2, "lora_alpha": 6, "lora_target_modules": ["all-linear"]}
CHATS = [{"prompt": [{"role": "user", "content": f"{n}+1=?"}], "answer": str(n + 1)} for n in range(4)]


def randomise(model):
    """Make the adapters nonzero, so that both of their matrices have gradients."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=generator))


def literal_gradients(model, batch, config):
    """Compute the gradients from the definition of the loss, with peft's own model, one row after the other."""
    base = make_exact(make_policy()[0])
    settings = {"r": 2, "lora_alpha": 6, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
    wrapped = peft.get_peft_model(base, peft.LoraConfig(**settings))
    values = {f"base_model.model.{name}": parameter for name, parameter in model.named_parameters()}
    for name, parameter in wrapped.named_parameters():
        parameter.data.copy_(values[name].data)
    logp, ref_logp = (torch.zeros(batch.loss_mask.shape, dtype=torch.float64) for _ in range(2))
    for row, prompt in enumerate(batch.rollout.prompt_of_row.tolist()):
        prompt_ids = batch.rollout.prompt_ids[prompt][batch.rollout.prompt_mask[prompt]]
        ids = batch.rollout.completion_ids[row][batch.rollout.mask[row]]
        tokens, predicting = torch.cat([prompt_ids, ids])[None], slice(len(prompt_ids) - 1, -1)
        cells = torch.tensor(row), torch.arange(len(ids))
        with wrapped.disable_adapter(), torch.no_grad():
            logits = wrapped(tokens).logits[:, predicting]
            ref_logp = ref_logp.index_put(cells, token_logprobs(logits, ids[None], config.temperature)[0])
        logits = wrapped(tokens).logits[:, predicting]
        logp = logp.index_put(cells, token_logprobs(logits, ids[None], config.temperature)[0])
    loss, _ = policy_loss(
        logp, batch.advantages.double(), batch.loss_mask, ref_logp=ref_logp, **config.loss_arguments()
    )
    loss.backward()
    return {name.removeprefix("base_model.model."): p.grad for name, p in wrapped.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "computed again"])
def test_the_gradient_is_that_of_pefts_own_model_by_the_definition(checkpointing):
    model, tokenizer = make_policy()
    add_lora(make_exact(model), **LORA)
    randomise(model)
    parts = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    config = make_config(beta=0.2, loss_type="grpo", temperature=0.8, **parts)
    torch.manual_seed(0)
    batch, _ = collect(model, tokenizer, ROWS[:2], letter_reward, config)
    batch = replace(batch, ref_logp=logprobs_without_gradient(without_adapter(model), batch, config))
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    accumulate_gradient(model, PolicyOptimizer(model, config), batch, config)
    gradients = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    expected = literal_gradients(model, batch, config)
    assert gradients.keys() == expected.keys() and len(expected) == 28
    for name, gradient in gradients.items():
        assert gradient.abs().max() > 1e-7, name
        # The log-probabilities of our loop are kept in float32 on the way to the loss, whatever the weights are.
        torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7)
    assert all(p.grad is None for p in model.parameters() if not p.requires_grad)


def test_frozen_weights_stay_and_the_seed_sets_the_adapters():
    (model, tokenizer), (again, _) = make_policy(), make_policy()
    add_lora(model, seed=3, **LORA)
    torch.manual_seed(99)
    add_lora(again, seed=3, **LORA)
    start, base = weights(model), weights(make_policy()[0])
    assert same_weights(start, weights(again))
    assert all(torch.equal(start[name.replace("proj.", "proj.base_layer.")], value) for name, value in base.items())
    train(model, tokenizer, ROWS, letter_reward, make_config(beta=0.1, weight_decay=0.1, max_steps=3))
    end = weights(model)
    moved = {name for name in start if not torch.equal(start[name], end[name])}
    assert moved == {name for name in start if "lora_" in name} and len(moved) == 28


def test_in_bf16_adapters_are_bf16_and_train_with_the_8_bit_optimizer_of_that_mode():
    model, tokenizer = make_policy()
    add_lora(model.to(torch.bfloat16), **LORA)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    start = weights(model)
    train(model, tokenizer, ROWS, letter_reward, make_config(max_steps=2))
    moved = {name for name, value in weights(model).items() if not torch.equal(start[name], value)}
    assert {name for name in start if "lora_B" in name} <= moved <= {name for name in start if "lora_" in name}


def test_the_reference_is_the_model_without_the_adapter_and_takes_no_room():
    model, tokenizer = make_policy()
    add_lora(model, **LORA)
    reference = without_adapter(model)
    config, (base, _) = make_config(), make_policy()
    train(model, tokenizer, ROWS, letter_reward, make_config(max_steps=2))
    torch.manual_seed(0)
    batch, _ = collect(model, tokenizer, ROWS[:2], letter_reward, config)
    assert torch.equal(
        logprobs_without_gradient(reference, batch, config), logprobs_without_gradient(base, batch, config)
    )
    assert not torch.allclose(
        logprobs_without_gradient(model, batch, config), logprobs_without_gradient(base, batch, config)
    )
    theirs = {parameter.data_ptr() for parameter in reference.parameters()}
    assert all((p.data_ptr() in theirs) != p.requires_grad for p in model.parameters())
    assert not any(p.requires_grad for p in reference.parameters())


def lora_run(folder, resume=False, callback=None, **settings):
    model, tokenizer = make_policy()
    add_lora(model, **(LORA | {name: settings.pop(name) for name in LORA if name in settings}))
    everything = {name: value for name, value in SETTINGS_WITH_EVERY_PART.items() if name != "ref_model_sync_steps"}
    config = make_config(output_dir=str(folder), resume_from_checkpoint=resume, **(everything | settings))
    return folder, model, train(model, tokenizer, ROWS, letter_reward, config, callback)


@pytest.mark.slow
def test_lora_resumes_bit_for_bit_and_saves_the_adapter_alone(tmp_path):
    def fail(step, metrics):
        if step == 3:
            raise RuntimeError("broken")

    whole = lora_run(tmp_path / "whole")
    with pytest.raises(RuntimeError, match="broken"):
        lora_run(tmp_path / "broken", callback=fail)
    with pytest.raises(ValueError, match=r"model differs .*adapter: was {'r': 2, 'alpha': 6.* is {'r': 2, 'alpha': 4"):
        lora_run(tmp_path / "broken", resume=True, lora_alpha=4)
    assert_same_end(lora_run(tmp_path / "broken", resume=True), whole)
    assert not any("model.safetensors" in name and "adapter" not in name for name in file_names(tmp_path / "whole"))
    assert {"adapter_model.safetensors", "checkpoint-5/adapter_model.safetensors"} < {*file_names(tmp_path / "whole")}
    assert not any("reference" in name for name in file_names(tmp_path / "whole"))


@pytest.fixture(scope="module")
def trained_adapter(tmp_path_factory):
    """A folder with a base model and a trained adapter, which no test changes, and the model that was trained."""
    folder = tmp_path_factory.mktemp("adapter")
    base = save_policy(folder / "base")
    model, tokenizer = load_policy(base, precision="fp32")
    add_lora(model, **LORA)
    randomise(model)
    train(model, tokenizer, CHATS, letter_reward, make_config(output_dir=str(folder / "run")))
    return folder, model


@pytest.fixture
def adapter(trained_adapter, tmp_path):
    """A copy of a folder with a trained adapter, beside a copy of its base model, and the model that was trained."""
    original, model = trained_adapter
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    for config in tmp_path.glob("run/**/adapter_config.json"):
        settings = json.loads(config.read_text("utf-8")) | {"base_model_name_or_path": str(tmp_path / "base")}
        config.write_text(json.dumps(settings), encoding="utf-8")
    return tmp_path / "run", copy.deepcopy(model)


def test_a_folder_with_an_adapter_is_loaded_merged_evaluated_and_asked(adapter, capsys):
    folder, model = adapter
    named = json.loads((folder / "adapter_config.json").read_text("utf-8"))["base_model_name_or_path"]
    assert named == str(folder.parent / "base")
    ids = torch.arange(12)[None]
    for name in (folder, folder / "checkpoint-2"):
        loaded, tokenizer = load_policy(name, precision="fp32")
        assert "is merged into its weights" in capsys.readouterr().out and not has_adapter(loaded)
        assert all(p.requires_grad for p in loaded.parameters()) and len(loaded.state_dict()) < len(model.state_dict())
        torch.testing.assert_close(loaded(ids).logits, model.eval()(ids).logits, rtol=1e-5, atol=1e-5)
    measured = evaluate(
        loaded, tokenizer, CHATS, num_generations=2, max_completion_length=4, reward_funcs=letter_reward
    )
    assert measured["n"] == 4 and isinstance(reply(loaded, tokenizer, "1+1=?", 4), str)
    theirs = peft.PeftModel.from_pretrained(load_policy(named, precision="fp32")[0], folder)
    torch.testing.assert_close(theirs(ids).logits, model(ids).logits)


def test_merge_saves_a_whole_model(adapter, tmp_path):
    folder, model = adapter
    assert models_command.main(["merge", str(folder), str(tmp_path / "merged")]) == 0
    ids = torch.arange(12)[None]
    merged, _ = load_policy(tmp_path / "merged", precision="fp32")
    torch.testing.assert_close(merged(ids).logits, model.eval()(ids).logits, rtol=1e-5, atol=1e-5)
    assert "expected a new folder" in refusal_of(models_command.main, "merge", str(folder), str(tmp_path / "merged"))


def test_lora_refuses_unsupported_settings_in_one_sentence(adapter):
    folder, _ = adapter
    model, tokenizer = make_policy()
    for settings, words in (
        (
            {"lora_target_modules": ["q_proj", "w_proj"]},
            "lora_target_modules is 'w_proj'; expected all-linear alone, or",
        ),
        ({"lora_target_modules": ["lm_head"]}, "lora_target_modules is 'lm_head'; expected all-linear .* q_proj, k_pr"),
        ({"lora_dropout": 0.1}, "lora_dropout is 0.1; expected 0, since sampler and trainer"),
        ({"lora_r": 0}, r"lora_r is 0; it must lie in \[1, inf\)"),
        ({"lora_alpha": 0}, r"lora_alpha is 0; it must lie in \(0, inf\)"),
    ):
        with pytest.raises(InputError, match=f"^{words}"):
            add_lora(model, **settings)
    assert not has_adapter(model)
    add_lora(model, **LORA)
    for trained in (model, load_policy(folder)[0]):
        with pytest.raises(InputError, match="use_peft is on, and the model has an adapter already; merge it into"):
            add_lora(trained, **LORA)
    for setting in ({"ref_model_sync_steps": 2}, {"ref_model_device": "cpu"}):
        with pytest.raises(
            InputError, match=r"ref_model_.* leave it out with LoRA: the reference is the model without"
        ):
            train(model, tokenizer, ROWS, letter_reward, make_config(beta=0.1, **setting))


def test_a_model_whose_layers_peft_does_not_know_wants_targets(monkeypatch):
    model, _ = make_policy()
    monkeypatch.setattr(type(model.config), "model_type", "unheard-of")
    with pytest.raises(
        InputError, match="^lora_target_modules is None; expected all-linear, or some of q_proj, k_proj"
    ):
        add_lora(model)


@pytest.mark.parametrize("fault", ["base", "weights", "other model"])
def test_an_adapter_without_its_model_or_weights_is_refused_in_one_sentence(adapter, fault):
    folder, _ = adapter
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    if fault == "base":
        (folder.parent / "base").rename(folder.parent / "elsewhere")
        words = (
            "a LoRA adapter for .*base', which is not a whole model on this machine; mend the name in its adapter_conf"
        )
    elif fault == "weights":
        (folder / "adapter_model.safetensors").unlink()
        words = "a LoRA adapter for .*, which has no adapter_model.safetensors; pickled files are not opened"
    else:
        for part in make_policy(hidden_size=24):
            part.save_pretrained(folder.parent / "base")
        words = "whose adapter does not fit its model: .*; take the model that it was trained with"
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"^name is .*run, {words}"):
        load_policy(folder)
