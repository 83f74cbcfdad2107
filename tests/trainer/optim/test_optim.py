"""The optimizers of all modes: the one of "bf16" compared with torchao's, non-finite updates, loss scaling."""

import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchao.optim import AdamW8bit
from torchao.optim.quant_utils import quantize_8bit_with_qmap

from grpo_lab.config.precision import PRECISIONS
from grpo_lab.trainer.optim import PolicyOptimizer, adamw_8bit, clip_gradients
from grpo_lab.trainer.optim.adamw_8bit import EightBitAdamW
from tests.support.kernels import KernelCounter
from tests.support.small_policy import make_config, make_policy, same_weights, weights

PRECISION_NAMES = ["fp32", "fp32-master", "fp16", "bf16-naive", "bf16"]


def make_optimizer(parameters, name="fp32", **settings):
    """Return an optimizer without clipping, so that the update uses the gradient itself."""
    config = make_config(precision=name, **({"max_grad_norm": math.inf} | settings))
    return PolicyOptimizer(torch.nn.ParameterList(parameters), config)


def make_parameter(values, name="fp32"):
    return torch.nn.Parameter(values.to(PRECISIONS[name].weights, copy=True))


@pytest.mark.parametrize("name", PRECISION_NAMES)
def test_a_parameter_without_gradient_counts_as_one_with_gradient_zero(name):
    first, second = (make_parameter(torch.ones(4096), name) for _ in range(2))
    without_gradient, with_zeros = make_optimizer([first], name), make_optimizer([second], name)
    for step in range(3):
        ones, zeros = torch.ones_like(first), torch.zeros_like(first)
        first.grad, second.grad = (None, zeros) if step else (ones, ones.clone())
        for optimizer in (without_gradient, with_zeros):
            torch.manual_seed(step)
            optimizer.step(0.1, loss=0.0)
        assert torch.equal(first, second)
    assert (first < 0.9).all(), "the momentum goes on"


@pytest.mark.parametrize("name", PRECISION_NAMES)
def test_optimizer_state_is_restored_to_the_bit_in_its_own_memory(name):
    start = torch.randn(8192, generator=torch.Generator().manual_seed(1))
    gradients = torch.randn(6, 8192, generator=torch.Generator().manual_seed(2))

    def move(optimizer, parameter, numbered_gradients):
        for number, gradient in numbered_gradients:
            torch.manual_seed(number)  # seed of the noise of stochastic rounding
            parameter.grad = (gradient * optimizer.loss_scale).to(parameter.dtype)
            optimizer.step(0.1, loss=0.0)

    weight = make_parameter(start, name)
    first = make_optimizer([weight], name)
    move(first, weight, enumerate(gradients[:3]))
    state = {key: value.clone() for key, value in first.tensors().items()}
    loaded_weight = torch.nn.Parameter(weight.detach().clone())
    second = make_optimizer([loaded_weight], name)
    second.load(first.state(), state)
    saved = {key: value.clone() for key, value in state.items()}
    move(first, weight, enumerate(gradients[3:]))
    move(second, loaded_weight, enumerate(gradients[3:]))
    assert torch.equal(weight, loaded_weight) and same_weights(first.tensors(), second.tensors())
    assert same_weights(state, saved), "what was loaded is not what is moved"


@pytest.mark.parametrize("max_norm", [0.5, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_gradient_clipping_equals_that_of_torch_up_to_rounding(dtype, max_norm):
    shapes, generator = [(3, 5), (40,), (1,)], torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    ours, theirs = ([torch.nn.Parameter(torch.zeros_like(g)) for g in gradients] for _ in range(2))
    for p, q, g in zip(ours, theirs, gradients, strict=True):
        p.grad, q.grad = g.clone(), g.clone()
    norm = clip_gradients(ours, max_norm)
    assert norm == pytest.approx(math.sqrt(sum((g.double() ** 2).sum().item() for g in gradients)), rel=1e-6)
    torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    for p, q in zip(ours, theirs, strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=0.01) if dtype == torch.bfloat16 else torch.equal(p.grad, q.grad)


def make_model_and_optimizer(dtype=torch.float32, **settings):
    model, _ = make_policy()
    model.to(dtype)
    return model, PolicyOptimizer(model, make_config(**settings))


def step_with(model, optimizer, gradient, lr, loss):
    for p in model.parameters():
        p.grad = torch.full_like(p, gradient)
    return optimizer.step(lr, loss)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("gradient", "loss"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, -math.inf)])
def test_optimizer_skips_nonfinite_updates_without_a_trace(gradient, loss, dtype):
    model, optimizer = make_model_and_optimizer(dtype, max_nonfinite_steps=2)
    twin, twin_optimizer = make_model_and_optimizer(dtype, max_nonfinite_steps=2)
    for number, (g, step_loss) in enumerate([(1.0, 1.0), (gradient, loss), (0.5, 1.0), (gradient, loss), (0.3, 1.0)]):
        torch.manual_seed(number)
        step_with(model, optimizer, g, 0.01, step_loss)
        if math.isfinite(g) and math.isfinite(step_loss):
            torch.manual_seed(number)
            step_with(twin, twin_optimizer, g, 0.01, step_loss)
        assert same_weights(weights(model), weights(twin))
    assert optimizer.num_skipped_updates == 2 and optimizer.nonfinite_in_a_row == 0


def test_fp16_scales_the_loss_so_that_a_gradient_too_small_for_fp16_still_arrives():
    model, optimizer = make_model_and_optimizer(max_grad_norm=1e9, precision="fp16", adam_beta1=0.0)
    optimizer.backward((model.lm_head.weight.half().float() * 1e-8).sum())
    assert torch.allclose(model.lm_head.weight.grad, torch.tensor(1e-8 * 2**12), rtol=1e-2)
    optimizer.step(1e-3, loss=0.0)
    index = next(i for i, p in enumerate(optimizer.parameters) if p is model.lm_head.weight)
    assert torch.allclose(optimizer.tensors()[f"{index}.exp_avg"], torch.tensor(1e-8), rtol=1e-2)


def test_an_overflow_halves_the_loss_scale_down_to_1():
    model, optimizer = make_model_and_optimizer(fp16=True, max_nonfinite_steps=2)
    start, scales = weights(model), []
    for _ in range(12):
        step_with(model, optimizer, math.inf, 0.01, loss=1.0)
        scales.append(optimizer.loss_scale)
    assert scales == [2.0 ** (11 - i) for i in range(12)] and optimizer.nonfinite_in_a_row == 0
    assert optimizer.num_skipped_updates == 12
    step_with(model, optimizer, math.inf, 0.01, loss=1.0)
    with pytest.raises(RuntimeError, match="2 updates in a row"):
        step_with(model, optimizer, math.inf, 0.01, loss=1.0)
    assert same_weights(weights(model), start)


def test_a_loss_scale_of_1_grows_again_after_100_finite_updates():
    model, optimizer = make_model_and_optimizer(fp16=True)
    for _ in range(13):
        step_with(model, optimizer, math.inf, 0.01, loss=1.0)
    scales = []
    for _ in range(200):
        step_with(model, optimizer, 1e-3, 0.0, loss=1.0)
        scales.append(optimizer.loss_scale)
    assert scales == [1.0] * 99 + [2.0] * 100 + [4.0]


# --- in 8 bits, in pieces -------------------------------------------------------------------------------------------


def eight_bit(parameters, lr, stochastic_rounding=True, betas=(0.9, 0.999), weight_decay=0.0):
    settings = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
    return EightBitAdamW(parameters, settings, stochastic_rounding)


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("piece", [4096, 8192, 2**22])
def test_update_in_pieces_is_torchaos_update_in_one(piece, monkeypatch):
    """Codes, scales and weights are equal bit for bit if torchao quantises; pieces end at borders of blocks."""
    monkeypatch.setattr(adamw_8bit, "PIECE_SIZE", piece)
    start = [0.02 * random(80, 256), 0.02 * random(64, 64), 0.02 * random(300, 64)]
    ours, theirs = ([torch.nn.Parameter(s.bfloat16()) for s in start] for _ in range(2))
    optimizer = eight_bit(ours, 1e-3, stochastic_rounding=False, weight_decay=0.1)
    reference = AdamW8bit(theirs, lr=1e-3, weight_decay=0.1)
    for step in range(5):
        for number, (p, q) in enumerate(zip(ours, theirs, strict=True)):
            p.grad = random(*p.shape, seed=10 * step + number).bfloat16()
            q.grad = p.grad.clone()
        optimizer.step()
        with torch.compiler.set_stance("force_eager"):
            reference.step()
    assert same_weights(dict(enumerate(ours)), dict(enumerate(theirs)))
    for name in ("exp_avg", "exp_avg_sq"):
        for part in ("codes", "scale"):
            mine = [value for key, value in optimizer.tensors().items() if key.endswith(f".{name}.{part}")]
            states = [getattr(reference.state[q][name], part).flatten() for q in theirs]
            assert torch.equal(torch.cat(mine), torch.cat(states))


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=64))
def test_quantisation_code_is_that_of_torchao(values):
    for signed, levels in zip((True, False), adamw_8bit.torchao_levels(), strict=True):
        thresholds = adamw_8bit.rounding_thresholds(levels)
        neighbours = [thresholds.nextafter(levels[0]), thresholds.nextafter(levels[-1])]
        near = torch.cat([thresholds, *neighbours, levels, torch.tensor(values)])
        scaled = near if signed else near.abs()
        assert torch.equal(adamw_8bit.nearest_codes(scaled, thresholds), quantize_8bit_with_qmap(scaled, levels))


def test_an_eight_bit_optimizer_step_launches_few_kernels(monkeypatch):
    """The count leaves out copies to and from the parameters; torchao's update needs 160 kernels for each parameter."""
    monkeypatch.setattr(adamw_8bit, "PIECE_SIZE", 2**16)
    weights = [torch.nn.Parameter(random(64, 256).bfloat16()) for _ in range(10)] + [torch.nn.Parameter(random(300))]
    optimizer = eight_bit(weights, 1e-3, weight_decay=0.1)
    for p in weights:
        p.grad = torch.ones_like(p)
    assert [sum(part.stop - part.start for part in piece) for piece in optimizer.pieces] == [2**16, 2**16, 2**15, 300]
    with KernelCounter() as kernels:
        optimizer.step()
    parts = sum(map(len, optimizer.pieces))
    assert kernels.count <= 48 * len(optimizer.pieces) + parts, kernels.names


def test_noise_below_the_last_bit_rounds_without_bias():
    x = torch.full((2**16,), 1 + 2.0**-10).mul_(torch.tensor([1.0, -1.0]).repeat(2**15))  # 1/8 of the way to the next
    torch.manual_seed(0)
    rounded = adamw_8bit.stochastic_round_bits(x)
    assert set(rounded.abs().tolist()) == {1.0, 1 + 2.0**-7}
    up = (rounded.abs() > 1).float().mean().item()
    assert up == pytest.approx(1 / 8, abs=6 * (1 / 8 * 7 / 8 / len(x)) ** 0.5)
    exact = torch.randn(512).bfloat16().float()
    assert torch.equal(adamw_8bit.stochastic_round_bits(exact).float(), exact)


@pytest.mark.parametrize(("name", "share"), [("bf16", 1.0), ("bf16-naive", 0.02)])
def test_share_of_updates_that_reaches_the_weights_is_that_of_the_optimizer(name, share):
    torch.manual_seed(0)
    start, steps = (0.02 * random(2**17)).bfloat16(), 200 if name == "bf16-naive" else 20
    weight = torch.nn.Parameter(start.clone())
    optimizer = make_optimizer([weight], name)
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step(1e-6, loss=0.0)
    moved = (start.double() - weight.detach().double()).mean().item() / (steps * 1e-6)
    assert moved == pytest.approx(share, abs=0.03 if share < 1 else 0.05)


@pytest.mark.slow
def test_second_moments_too_few_to_be_quantised_follow_the_gradients():
    """In bf16, as in torchao, they would stop at a third of the right value, and never decrease again."""
    ours = torch.nn.Parameter(torch.ones(64, dtype=torch.bfloat16))
    optimizer = eight_bit([ours], 0.0)
    for _ in range(1200):
        ours.grad = torch.ones_like(ours)
        optimizer.step()
    assert optimizer.tensors()["0.exp_avg_sq.values"][0].item() == pytest.approx(1 - 0.999**1200, rel=1e-3)


def test_parameters_that_are_not_contiguous_are_named():
    odd = torch.nn.Parameter(torch.zeros(64, 128, dtype=torch.bfloat16).T)
    with pytest.raises(ValueError, match=r"parameters \[1\] are not contiguous"):
        eight_bit([torch.nn.Parameter(torch.zeros(3)), odd], 0.1)


def test_eight_bit_optimizer_without_torchao_is_an_error_with_remedies(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.optim.quant_utils", None)
    model = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))])
    with pytest.raises(ImportError, match=r"pip install .grpo-lab\[torchao\].*precision='fp32-master'"):
        PolicyOptimizer(model, make_config(precision="bf16"))
    PolicyOptimizer(model, make_config(precision="bf16-naive"))
