"""The optimizer: float32 masters under half-precision weights, guarded steps, loss scaling, the learning rate."""

import copy
import math

import pytest
import torch

from grpo_lab.optim import GuardedOptimizer, MasterAdamW, learning_rate
from tests.worlds import make_config, make_world, same_weights, weights

N = 4000


def move(optimizer, parameter, steps, gradient):
    for _ in range(steps):
        parameter.grad = gradient.to(parameter.dtype)
        optimizer.step()


def start_weights():
    """As in a language model: small normal numbers, and RMSNorm's ones."""
    normal = 0.02 * torch.randn(N, generator=torch.Generator().manual_seed(0))
    return torch.cat([normal, torch.ones(N)]).bfloat16()


@pytest.mark.parametrize(("rate", "realised"), [(1e-6, 0.02), (5e-6, 0.07), (1e-5, 0.14)])
def test_bf16_weights_move_as_far_as_float32_ones_but_not_under_plain_adamw(rate, realised):
    """200 steps in one direction, so that every weight should move by 200 times the learning rate."""
    start, gradient, moved = start_weights(), torch.ones(2 * N), {}
    for name, dtype, kind in [
        ("float32", torch.float32, torch.optim.AdamW),
        ("plain", torch.bfloat16, torch.optim.AdamW),
        ("master", torch.bfloat16, MasterAdamW),
    ]:
        parameter = torch.nn.Parameter(start.to(dtype, copy=True))
        optimizer = kind([parameter], lr=rate, weight_decay=0.0)
        move(optimizer, parameter, 200, gradient)
        now = optimizer.masters[0].detach() if kind is MasterAdamW else parameter.detach().float()
        moved[name] = (start.float() - now).double()
        if kind is MasterAdamW:
            assert torch.equal(parameter, now.bfloat16()), "the model holds the masters, rounded once"
    assert torch.equal(moved["master"], moved["float32"])
    assert moved["float32"].mean() == pytest.approx(200 * rate, rel=0.05)
    share = moved["plain"][:N].mean() / (200 * rate)
    assert share == pytest.approx(realised, abs=0.025), "most of the movement is lost to rounding"
    assert (moved["plain"][N:] == 0).all(), "weights equal to 1 never move"


def test_float32_and_float64_weights_are_their_own_masters():
    for dtype in (torch.float32, torch.float64):
        parameter = torch.nn.Parameter(torch.randn(3, dtype=dtype))
        other = torch.nn.Parameter(parameter.detach().clone())
        ours, theirs = (
            MasterAdamW([parameter], lr=0.1, weight_decay=0.2),
            torch.optim.AdamW([other], lr=0.1, weight_decay=0.2),
        )
        assert ours.masters[0] is parameter
        for _ in range(3):
            gradient = torch.randn(3, dtype=dtype)
            move(ours, parameter, 1, gradient)
            move(theirs, other, 1, gradient)
        assert torch.equal(parameter, other)


def test_a_parameter_without_gradient_counts_as_one_with_gradient_zero():
    one, other = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    left_out, zero = MasterAdamW([one], lr=0.1), MasterAdamW([other], lr=0.1)
    for step in range(3):
        one.grad, other.grad = (None, torch.zeros(2)) if step else (torch.ones(2), torch.ones(2))
        for optimizer in (left_out, zero):
            optimizer.step()
            optimizer.zero_grad()
        assert torch.equal(one, other)
    assert (one < 0.9).all(), "the momentum goes on"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gathering_first_or_in_the_step_is_the_same(dtype):
    after = []
    for gather in (False, True):
        parameter = torch.nn.Parameter(torch.arange(4).to(dtype))
        optimizer = MasterAdamW([parameter], lr=0.1)
        for step in range(3):
            parameter.grad = torch.full_like(parameter, 1.0 - step)
            if gather:
                optimizer.gather_gradients()
            optimizer.step()
        after.append(parameter.detach())
    assert torch.equal(*after)


def test_nothing_to_train_is_an_error():
    with pytest.raises(ValueError, match="parameters holds none that requires a gradient"):
        MasterAdamW([torch.zeros(2)], lr=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_state_comes_back_bit_for_bit_and_owns_its_memory(dtype):
    start = torch.randn(5, generator=torch.Generator().manual_seed(1)).to(dtype)
    one = torch.nn.Parameter(start.clone())
    first = MasterAdamW([one], lr=0.1)
    move(first, one, 3, torch.arange(5.0))
    state = {name: value.clone() for name, value in first.state_tensors().items()}
    two = torch.nn.Parameter(one.detach().clone())
    second = MasterAdamW([two], lr=0.1)
    second.load_state_tensors(state)
    kept = {name: value.clone() for name, value in state.items()}
    move(first, one, 3, torch.arange(5.0).flip(0))
    move(second, two, 3, torch.arange(5.0).flip(0))
    assert torch.equal(one, two) and same_weights(first.state_tensors(), second.state_tensors())
    assert same_weights(state, kept), "what was loaded is not what is moved"


# --- guarded --------------------------------------------------------------------------------------------------------


def guarded(dtype=torch.float32, **settings):
    model, _ = make_world()
    model.to(dtype)
    return model, GuardedOptimizer(model, make_config(**settings))


def put_gradient(model, value):
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def test_the_norm_returned_is_that_before_clipping_and_the_step_is_clipped():
    model, optimizer = guarded(max_grad_norm=0.5, adam_beta1=0.0)
    n = sum(p.numel() for p in model.parameters())
    put_gradient(model, 2.0)
    assert optimizer.step(0.1, loss=1.0) == pytest.approx(2 * math.sqrt(n), rel=1e-5)
    squares = [state["exp_avg_sq"] for state in optimizer.optimizer.adamw.state.values()]
    clipped = 2.0 * 0.5 / (2 * math.sqrt(n))
    assert all(torch.allclose(square, torch.full_like(square, 0.001 * clipped**2), rtol=1e-4) for square in squares)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(("gradient", "loss"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, -math.inf)])
def test_what_is_not_finite_is_skipped_and_leaves_no_trace(gradient, loss):
    model, optimizer = guarded(max_nonfinite_steps=2)
    twin, same = guarded(max_nonfinite_steps=2)
    for step_gradient, step_loss in [(1.0, 1.0), (gradient, loss), (0.5, 1.0), (gradient, loss), (0.3, 1.0)]:
        put_gradient(model, step_gradient)
        optimizer.step(0.01, step_loss)
        if math.isfinite(step_gradient) and math.isfinite(step_loss):
            put_gradient(twin, step_gradient)
            same.step(0.01, step_loss)
        assert same_weights(weights(model), weights(twin))
    assert optimizer.nonfinite_total == 2 and optimizer.nonfinite_in_a_row == 0


def test_patience_counts_what_comes_in_a_row():
    model, optimizer = guarded(max_nonfinite_steps=2)
    before = weights(model)
    put_gradient(model, math.nan)
    optimizer.step(0.01, 1.0)
    put_gradient(model, math.nan)
    with pytest.raises(RuntimeError, match=r"2 updates in a row were not finite \(last loss 1.0, gradient norm nan\)"):
        optimizer.step(0.01, 1.0)
    assert same_weights(weights(model), before)


def test_fp16_scales_the_loss_and_a_gradient_too_small_for_fp16_still_arrives():
    """Without the scale, 1e-8 rounds to zero in fp16. Undone in fp16 itself, it would be lost again."""
    model, optimizer = guarded(torch.float16, max_grad_norm=1e9)
    assert optimizer.loss_scale == 2.0**12
    parameter = model.lm_head.weight
    tiny = torch.full_like(parameter, 1e-4) * 1e-4
    assert (tiny == 0).all()
    optimizer.backward((parameter.float() * 1e-8).sum())
    assert parameter.grad.float().mean().item() == pytest.approx(1e-8 * 2**12, rel=1e-2)
    optimizer.step(1e-3, loss=0.0)
    index = next(i for i, p in enumerate(optimizer.optimizer.parameters) if p is parameter)
    first_moment = optimizer.optimizer.state_tensors()[f"{index}.exp_avg"]
    assert torch.allclose(first_moment, torch.full_like(first_moment, 1e-9), rtol=1e-2)


def test_an_overflow_halves_the_scale_and_does_not_end_the_run_until_there_is_no_scale_left():
    model, optimizer = guarded(fp16=True, max_nonfinite_steps=2)
    before, scales = weights(model), []
    for _ in range(12):
        put_gradient(model, math.inf)
        optimizer.step(0.01, loss=1.0)
        scales.append(optimizer.loss_scale)
    assert scales == [2.0 ** (11 - i) for i in range(12)] and optimizer.nonfinite_in_a_row == 0
    assert optimizer.nonfinite_total == 12
    put_gradient(model, math.inf)
    optimizer.step(0.01, loss=1.0)
    put_gradient(model, math.inf)
    with pytest.raises(RuntimeError, match="2 updates in a row"):
        optimizer.step(0.01, loss=1.0)
    assert same_weights(weights(model), before)


def test_a_loss_that_is_nan_is_no_overflow():
    model, optimizer = guarded(fp16=True, max_nonfinite_steps=2)
    put_gradient(model, math.nan)
    optimizer.step(0.01, loss=math.nan)
    assert optimizer.loss_scale == 2.0**12 and optimizer.nonfinite_in_a_row == 1


def test_without_fp16_the_loss_is_not_scaled():
    model, optimizer = guarded()
    other = copy.deepcopy(model)
    optimizer.backward(model.lm_head.weight.square().sum())
    other.lm_head.weight.square().sum().backward()
    assert optimizer.loss_scale == 1.0 and torch.equal(model.lm_head.weight.grad, other.lm_head.weight.grad)


# --- the learning rate ----------------------------------------------------------------------------------------------


def test_the_learning_rate_rises_then_stays_or_falls():
    rates = {kind: [learning_rate(s, 1.0, 4, 12, kind) for s in range(12)] for kind in ("constant", "linear", "cosine")}
    for kind in rates:
        assert rates[kind][:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates["constant"][4:] == [1.0] * 8
    assert rates["linear"][4:] == pytest.approx([1 - i / 8 for i in range(8)])
    assert rates["cosine"][4:] == pytest.approx([0.5 + 0.5 * math.cos(math.pi * i / 8) for i in range(8)])


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine"])
def test_the_learning_rate_at_the_edges(kind):
    assert learning_rate(0, 0.3, 0, 10, kind) == 0.3, "without warm-up the first step learns at the peak"
    assert [learning_rate(s, 1.0, 9, 3, kind) for s in range(3)] == pytest.approx([1 / 9, 2 / 9, 3 / 9])
    assert all(learning_rate(s, 1.0, 2, 20, kind) > 0 for s in range(20)), "no step is wasted"
    assert learning_rate(5, 1.0, 5, 5, kind) == 1.0
