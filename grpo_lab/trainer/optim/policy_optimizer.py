"""The optimizer of a run, in every precision, and the guard around its steps."""

import math

import torch

from grpo_lab.base.checks import InputError, RunError
from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import precision_of
from grpo_lab.trainer.optim.adamw_8bit import EightBitAdamW


class PolicyOptimizer:
    """AdamW, in the precision of the model, on all parameters that require a gradient; skips non-finite updates.

    A missing gradient counts as zero, so the moments of that parameter continue to decay. An update whose loss or
    gradient is not finite is skipped and counted; `max_nonfinite_steps` of them in a row stop the run. In fp16 a
    gradient may overflow only because the loss scale is large. Such an update halves the scale, and does not count
    towards `max_nonfinite_steps`.
    """

    def __init__(self, model, config: GRPOConfig):
        self.precision = precision_of(model, config)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        if not self.parameters:
            raise InputError("model has no parameter that requires a gradient; expected at least one")
        settings = {"betas": (config.adam_beta1, config.adam_beta2), "weight_decay": config.weight_decay}
        self.adamw: EightBitAdamW | TorchAdamW
        if self.precision.optimizer == "adamw8bit":  # [rounding]
            self.adamw = EightBitAdamW(self.parameters, settings, self.precision.stochastic_rounding)
        else:
            self.adamw = TorchAdamW(self.parameters, settings)
        # The loss scale of fp16; it is 1 in the others. torch starts at 2^16 and doubles every 2000 updates. Here it is
        # 2^12, so that no first rollout is lost to an overflow, and 100, since few runs have 2000 updates.
        device, is_scaling = self.parameters[0].device, self.precision.loss_scaling
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**12, growth_interval=100, enabled=is_scaling)
        # `scale` creates the tensors of the scaler, which `step` needs even if `backward` was never called.
        self.scaler.scale(torch.zeros((), device=device))
        self.max_grad_norm, self.max_nonfinite_steps = config.max_grad_norm, config.max_nonfinite_steps
        self.num_skipped_updates, self.nonfinite_in_a_row = 0, 0

    @property
    def loss_scale(self) -> float:
        return self.scaler.get_scale()

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of a loss to the gradients of the parameters."""
        if loss.requires_grad:  # False if no row of the micro-batch has a gradient
            self.scaler.scale(loss).backward()

    @torch.no_grad()
    def step(self, lr: float, loss: float) -> float:
        """Make one update from the accumulated gradient; return the norm of the gradient before clipping.

        Args:
            lr: The learning rate of this update.
            loss: The loss of this update; the update is skipped if it is not finite.

        Raises:
            RunError: if `max_nonfinite_steps` updates in a row were not finite.
        """
        self.adamw.set_lr(lr)
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.scaler.unscale_(self.adamw)  # type: ignore[arg-type]  # for `EightBitAdamW` the scaler is disabled
        scale = self.loss_scale
        # If the loss is finite, the scaler decides (None). Otherwise the scale stays: a smaller one would not help.
        self.scaler.update(None if math.isfinite(loss) else scale)
        if self.loss_scale < 1:  # a scale of 1 is not halved further, and grows again after finite updates
            self.scaler.update(1.0)
        norm, stepped = step_if_finite(self.adamw, self.parameters, loss, self.max_grad_norm)
        was_halved = self.loss_scale < scale
        if stepped:
            self.nonfinite_in_a_row = 0
        else:
            self.num_skipped_updates += 1
            self.nonfinite_in_a_row += not was_halved
        if self.nonfinite_in_a_row >= self.max_nonfinite_steps:
            raise RunError(
                f"{self.nonfinite_in_a_row} updates in a row were not finite (last loss {loss}, gradient norm {norm}). "
                "The weights are as they were before them. Look at learning_rate, at the rewards, and at extreme "
                "log-probabilities; max_nonfinite_steps sets the patience."
            )
        return norm

    def state(self) -> dict:
        """Return the state that the next update depends on, except for the tensors: counts and the loss scale."""
        return {
            # Not "num_skipped_updates": checkpoints of 1.0 have this name, and another one could not resume them.
            "nonfinite_total": self.num_skipped_updates,
            "nonfinite_in_a_row": self.nonfinite_in_a_row,
            "scaler": self.scaler.state_dict(),
        }

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the moments and their step numbers as named tensors, ready for safetensors."""
        return self.adamw.tensors()

    @torch.no_grad()
    def load(self, state: dict, tensors: dict[str, torch.Tensor]) -> None:
        """Restore the optimizer from the values that `state` and `tensors` returned."""
        self.adamw.load(tensors)
        self.num_skipped_updates, self.nonfinite_in_a_row = state["nonfinite_total"], state["nonfinite_in_a_row"]
        self.scaler.load_state_dict(state["scaler"])


class TorchAdamW(torch.optim.AdamW):
    """The AdamW of torch, with its state as named tensors; fused, since the unfused step copies the moments."""

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
            # Cloned because a tensor from safetensors may share the memory of the open file.
            state.setdefault(int(index), {})[name] = value.clone()
        self.load_state_dict({"state": state, "param_groups": self.state_dict()["param_groups"]})


def clip_gradients(parameters: list[torch.nn.Parameter], max_norm: float) -> float:
    """Scale all gradients together so that their common norm is at most `max_norm`; return the norm before clipping.

    It equals torch's `clip_grad_norm_`, except that the norm of half-precision gradients is computed in float32.
    """
    dtype = torch.float64 if parameters[0].dtype == torch.float64 else torch.float32
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(p.grad, dtype=dtype) for p in parameters]))
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm.item()


def step_if_finite(
    optimizer, parameters: list[torch.nn.Parameter], loss: float, max_grad_norm: float
) -> tuple[float, bool]:
    """Clip the gradient and make one update with it, but only if both loss and gradient are finite.

    One NaN in a gradient makes every weight NaN, since clipping divides by the norm of all gradients. Training cannot
    recover from that. So a non-finite update is skipped: weights and moments do not change. The gradients are cleared
    in both cases.

    Args:
        optimizer: An optimizer over these parameters, with the methods `step()` and `zero_grad()`.
        parameters: The parameters of the policy; each has a gradient.
        loss: The loss of this update; it may be negative.
        max_grad_norm: Largest norm of all gradients together, greater than 0. A larger norm is scaled down to it by
            `clip_gradients(parameters, max_grad_norm)`, which returns the norm before clipping.

    Returns:
        The norm before clipping, as a float (infinite or NaN if the gradient is not finite), and whether the update was
        made, as a bool. If the gradients are finite but their norm overflows (beyond about 1e19 in float32), the update
        may be made or skipped.
    """
    norm = clip_gradients(parameters, max_grad_norm)
    stepped = math.isfinite(norm) and math.isfinite(loss)
    if stepped:
        optimizer.step()
    optimizer.zero_grad()
    return norm, stepped
