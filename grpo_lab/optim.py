"""AdamW that also works on half-precision weights, and the learning rate schedule.

A bf16 number keeps 8 significant bits. At a learning rate of 1e-6 most Adam updates are smaller than half the
distance to the next such number and are rounded away. So the optimizer moves float32 master weights and copies them
to the model afterwards. For float32 and float64 weights the masters *are* the weights.
"""

import math

import torch

from grpo_lab.config import GRPOConfig

_WIDE = (torch.float32, torch.float64)


class MasterAdamW:
    """torch's AdamW on float32 master copies of the model's parameters."""

    def __init__(self, parameters, lr: float, betas: tuple[float, float] = (0.9, 0.999), weight_decay: float = 0.0):
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.parameters:
            raise ValueError("parameters holds none that requires a gradient")
        self.masters = [p if p.dtype in _WIDE else p.detach().float().clone() for p in self.parameters]
        for master in self.masters:
            master.requires_grad_(True)
        self.adamw = torch.optim.AdamW(self.masters, lr=lr, betas=betas, weight_decay=weight_decay)

    def set_lr(self, lr: float) -> None:
        for group in self.adamw.param_groups:
            group["lr"] = lr

    @torch.no_grad()
    def gather_gradients(self, loss_scale: float = 1.0) -> None:
        """Move the gradients to the masters and undo the loss scale there: in fp16 itself, small ones would vanish.

        A parameter without gradient counts as one whose gradient is zero: its moments go on decaying.
        """
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if parameter.grad is None and master.grad is not None:
                continue  # gathered before
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = None
            master.grad = gradient.to(master.dtype).div_(loss_scale)

    @torch.no_grad()
    def step(self) -> None:
        self.gather_gradients()
        self.adamw.step()
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            if master is not parameter:
                parameter.copy_(master)
                master.grad = None

    def zero_grad(self) -> None:
        for tensor in (*self.parameters, *self.masters):
            tensor.grad = None

    def state_tensors(self) -> dict[str, torch.Tensor]:
        """The whole state as flat named tensors, ready for safetensors."""
        state = {
            f"{index}.{name}": value.contiguous()
            for index, moments in self.adamw.state_dict()["state"].items()
            for name, value in moments.items()
        }
        copies = {
            f"{index}.master": master.detach()
            for index, (parameter, master) in enumerate(zip(self.parameters, self.masters, strict=True))
            if master is not parameter
        }
        return state | copies

    @torch.no_grad()
    def load_state_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        state = {}
        for key, value in tensors.items():
            index, name = key.split(".", 1)
            if name == "master":
                self.masters[int(index)].copy_(value)
            else:
                # Cloned, because a tensor read from safetensors may be the open file itself.
                state.setdefault(int(index), {})[name] = value.clone()
        self.adamw.load_state_dict({"state": state, "param_groups": self.adamw.state_dict()["param_groups"]})


def learning_rate(step: int, peak: float, warmup_steps: int, max_steps: int, scheduler_type: str) -> float:
    """Rise linearly to the peak in `warmup_steps`, then stay ("constant") or fall to zero ("linear", "cosine").

    Steps count from 0; the first one already learns, at peak / warmup_steps.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    share = (step - warmup_steps) / max(max_steps - warmup_steps, 1)
    return peak * {"constant": 1.0, "linear": 1 - share, "cosine": (1 + math.cos(math.pi * share)) / 2}[scheduler_type]


class GuardedOptimizer:
    """The optimizer of a run: scales the loss for fp16, clips the gradient, and steps only if everything is finite.

    An update with a loss or gradient that is not finite is skipped and counted. `max_nonfinite_steps` of them in a
    row stop the run: something is wrong that skipping won't mend. In fp16 a gradient may overflow for no other reason
    than a large loss scale; such an update halves the scale, and does not bring the end nearer.
    """

    def __init__(self, model, config: GRPOConfig):
        betas = (config.adam_beta1, config.adam_beta2)
        self.optimizer = MasterAdamW(model.parameters(), config.learning_rate, betas, config.weight_decay)
        self.loss_scale = 2.0**12 if config.fp16 or model.dtype == torch.float16 else 1.0
        self.max_grad_norm, self.patience = config.max_grad_norm, config.max_nonfinite_steps
        self.nonfinite_total, self.nonfinite_in_a_row = 0, 0

    def backward(self, loss: torch.Tensor) -> None:
        (loss * self.loss_scale).backward()

    def step(self, lr: float, loss: float) -> float:
        """Make one update from the gradient gathered since the last; returns the gradient's norm before clipping."""
        self.optimizer.set_lr(lr)
        self.optimizer.gather_gradients(self.loss_scale)
        norm = torch.nn.utils.clip_grad_norm_(self.optimizer.masters, self.max_grad_norm).item()
        if math.isfinite(norm) and math.isfinite(loss):
            self.optimizer.step()
            self.nonfinite_in_a_row = 0
        else:
            self._skip(loss, norm)
        self.optimizer.zero_grad()
        return norm

    def _skip(self, loss: float, norm: float) -> None:
        self.nonfinite_total += 1
        if math.isfinite(loss) and self.loss_scale > 1:
            self.loss_scale /= 2
            return
        self.nonfinite_in_a_row += 1
        if self.nonfinite_in_a_row >= self.patience:
            raise RuntimeError(
                f"{self.nonfinite_in_a_row} updates in a row were not finite (last loss {loss}, gradient norm {norm}). "
                "The weights are as they were before them. Look at learning_rate, at the rewards, and at extreme "
                "log-probabilities; max_nonfinite_steps sets the patience."
            )
