"""The optimizer of a run, in every precision mode, and the guard around its steps.

A comment such as `# [rounding]` labels a line that exercises and mutation tests break (formulas/lines.py).
"""

import math

import torch

from grpo_lab.base.checks import InputError, RunError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import precision_of
from grpo_lab.trainer.optim_8bit import EightBitAdamW


class PolicyOptimizer:
    """AdamW on all parameters that require a gradient, as the model's precision mode wants it, one safe step at a time.

    A parameter without gradient counts as one whose gradient is zero, so its moments go on decaying. An update that is
    not finite is skipped and counted; `max_nonfinite_steps` of them in a row stop the run. In fp16 a gradient may
    overflow for no other reason than a large loss scale: such an update halves it, and does not bring the end nearer.
    """

    def __init__(self, model, config: GRPOConfig):
        self.precision = precision_of(model, config)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("model has no parameter that requires a gradient; expected at least one")
        settings = {"betas": (config.adam_beta1, config.adam_beta2), "weight_decay": config.weight_decay}
        if self.precision.optimizer == "adamw8bit":  # [rounding]
            self.adamw = EightBitAdamW(self.parameters, settings, self.precision.stochastic_rounding)
        else:
            self.adamw = TorchAdamW(self.parameters, settings)
        # The loss scale of fp16, elsewhere 1. torch's own start, 2^16, would spend the first rollouts on overflows; its
        # 2000 updates without growth, the run.
        device, enabled = self.parameters[0].device, self.precision.loss_scaling
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, growth_interval=100, enabled=enabled)
        self.scaler.scale(torch.zeros((), device=device))  # makes its tensors: an update may come before any backward
        self.max_grad_norm, self.patience = config.max_grad_norm, config.max_nonfinite_steps
        self.nonfinite_total, self.nonfinite_in_a_row = 0, 0

    @property
    def loss_scale(self) -> float:
        return self.scaler.get_scale()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of a loss; one in which no row is active has none."""
        if loss.requires_grad:
            self.scaler.scale(loss).backward()

    @torch.no_grad()
    def step(self, lr: float, loss: float) -> float:
        """Make one update from the gradient gathered since the last; returns the gradient's norm before clipping."""
        self.adamw.set_lr(lr)
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.scaler.unscale_(self.adamw)
        scale = self.loss_scale
        # Where the loss itself is at fault, or nothing is left to halve, the scale stays; None lets the scaler decide.
        self.scaler.update(scale if not math.isfinite(loss) or scale <= 1 else None)
        norm, stepped = step_if_finite(self.adamw, self.parameters, loss, self.max_grad_norm)
        self.nonfinite_total += not stepped
        self.nonfinite_in_a_row = 0 if stepped else self.nonfinite_in_a_row + (self.loss_scale >= scale)
        if self.nonfinite_in_a_row >= self.patience:
            raise RunError(
                f"{self.nonfinite_in_a_row} updates in a row were not finite (last loss {loss}, gradient norm {norm}). "
                "The weights are as they were before them. Look at learning_rate, at the rewards, and at extreme "
                "log-probabilities; max_nonfinite_steps sets the patience."
            )
        return norm

    def state(self) -> dict:
        """Everything but tensors that the next update depends on."""
        counts = {"nonfinite_total": self.nonfinite_total, "nonfinite_in_a_row": self.nonfinite_in_a_row}
        return counts | {"scaler": self.scaler.state_dict()}

    def tensors(self) -> dict[str, torch.Tensor]:
        """The moments and their step numbers as flat named tensors, ready for safetensors."""
        return self.adamw.tensors()

    @torch.no_grad()
    def load(self, state: dict, tensors: dict[str, torch.Tensor]) -> None:
        """Continue from what `state` and `tensors` returned."""
        self.adamw.load(tensors)
        self.nonfinite_total, self.nonfinite_in_a_row = state["nonfinite_total"], state["nonfinite_in_a_row"]
        self.scaler.load_state_dict(state["scaler"])


class TorchAdamW(torch.optim.AdamW):
    """torch's own, with its state as flat tensors. Fused: otherwise each step copies moments as it goes."""

    def __init__(self, parameters: list[torch.nn.Parameter], settings: dict):
        super().__init__(parameters, **settings, fused=True)

    def set_lr(self, lr: float) -> None:
        for group in self.param_groups:
            group["lr"] = lr

    def tensors(self) -> dict[str, torch.Tensor]:
        return {
            f"{index}.{name}": value.contiguous()
            for index, moments in self.state_dict()["state"].items()
            for name, value in moments.items()
        }

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        state: dict[int, dict] = {}
        for key, value in tensors.items():
            index, name = key.split(".", 1)
            # Cloned, because a tensor read from safetensors may be the open file itself.
            state.setdefault(int(index), {})[name] = value.clone()
        self.load_state_dict({"state": state, "param_groups": self.state_dict()["param_groups"]})


def clip_gradients(parameters: list[torch.nn.Parameter], max_norm: float) -> float:
    """Scale all gradients together so that their common norm is at most `max_norm`; returns the norm before that.

    It is torch's `clip_grad_norm_`, with the norm of half-precision gradients computed in float32.
    """
    wide = torch.float64 if parameters[0].dtype == torch.float64 else torch.float32
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad, dtype=wide) for p in parameters]))
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm.item()


def step_if_finite(
    optimizer, parameters: list[torch.nn.Parameter], loss: float, max_grad_norm: float
) -> tuple[float, bool]:
    """Clip the gradient and make one update with it, but only if both loss and gradient are finite.

    One NaN in a gradient makes every weight NaN: clipping divides by the norm of all of them. It would never heal. So
    such an update is skipped, and Adam's moments stay as they are, too. The gradients are gone afterwards either way.

    Args:
        optimizer: anything with `step()` and `zero_grad()`, over these parameters.
        parameters: each with a gradient.
        loss: of this update; it may be negative.
        max_grad_norm: greater than 0; the norm of all gradients together is scaled down to it if it is larger, by
            `clip_gradients(parameters, max_grad_norm)`, which returns the norm before.

    Returns:
        The norm before clipping, as a float (infinite or NaN, either, where the gradient is not finite), and whether
        the update was made, as a bool. Where finite gradients are so large that their norm overflows (beyond about
        1e19 in float32), the update may be made or skipped.
    """
    norm = clip_gradients(parameters, max_grad_norm)
    stepped = math.isfinite(norm) and math.isfinite(loss)
    if stepped:
        optimizer.step()
    optimizer.zero_grad()
    return norm, stepped
