"""What is alive in the four phases of a step: rollout, log-probabilities, update, optimizer step.

A phase is a list of moments, part name to bytes, in the order in which they come. The largest is what the phase needs.
"""

from dataclasses import dataclass

from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import Precision
from grpo_lab.memory import parts
from grpo_lab.models.shapes import ModelShape
from grpo_lab.rollout.recompute import head_chunk
from grpo_lab.rollout.static import CAPTURED_LOGITS, fixed_columns
from grpo_lab.trainer.optim_8bit import PIECE

Parts = dict[str, int]
DRAWING = 4  # float32 tensors of the size of the logits: they, their logarithm after the softmax, two of probabilities


@dataclass
class Setting:
    """A run, a model's shape and a device, and the sizes that follow from them at once."""

    shape: ModelShape
    config: GRPOConfig
    mode: Precision
    prompt_length: int
    device_type: str
    chunked: bool = True  # the head; else all logits stand at once, as in code that calls the model for them
    shared: bool = True  # a prompt is computed once for the rows that answer it; else in each of them

    def __post_init__(self):
        shape, c, autocast = self.shape, self.config, self.mode.autocast
        L, T, V, D = self.prompt_length, c.max_completion_length, shape.vocabulary, shape.width
        self.rows = rows = c.rows_at_once  # at a time, in an update
        self.weight = self.mode.weights.itemsize  # bytes of a weight, and of a number of the residual stream
        self.product = (autocast or self.mode.weights).itemsize  # of a number in the products of forward and backward
        self.length = L + T
        # Of a micro-batch: the tokens that pass the layers (the last of a completion predicts nothing), those of
        # completions, and how many of them pass the head at a time.
        self.tokens = self.prompts * L + rows * (T - 1)
        self.completion_tokens = rows * T
        self.chunk = head_chunk(self.completion_tokens, V, D, self.device_type) if self.chunked else None
        self.gradients = parts.weight_bytes(shape.parameters, self.weight)
        # The output embedding; its gradient, if it is the input's, too, waits for the one from there.
        self.embedding = parts.weight_bytes(V * D, self.weight)
        self.head_gradient = self.embedding if shape.tied else 0
        # What autocast copies to half precision: the head, and the linear maps of the layers.
        self.head_copy = parts.weight_bytes(V * D, self.product) if autocast else 0
        self.layer_copies = parts.weight_bytes(shape.linear, self.product) if autocast else 0
        # What is kept for the backward pass by one layer, keys and values for each row that looks at them; by the last
        # norm and the head; and masks, alone in growing with the square of a length: all layers share those of the
        # completions, each with its prompt, and of the prompts, for all query heads of a key head in line.
        of_a_token = parts.layer_token_bytes(shape, self.product, self.weight, copies=3 if autocast else 0)
        columns = rows * self.length + self.prompts * L
        self.one_layer = self.tokens * of_a_token + parts.cache_bytes(shape, columns, self.product) // shape.layers
        self.last = self.tokens * ((4 + self.weight) * D + 4) + self.completion_tokens * self.weight * D
        cells = rows * (T - 1) * self.length + self.prompts * L * L
        self.masks = self.product * (shape.queries // shape.keys) * cells

    @property
    def prompts(self) -> int:
        """The most that a micro-batch computes. The rows of a prompt stand together (trainer/logprobs.py)."""
        c, rows, group = self.config, self.rows, self.config.num_generations
        if not self.shared:
            return rows
        whole_groups = c.update_batch_size == c.generation_batch_size
        if whole_groups and (rows % group == 0 or group % rows == 0):
            return max(rows // group, 1)
        return min(c.prompts_per_step, rows)


def resident(s: Setting) -> Parts:
    """What stays for the whole run. Adam's moments are as precise as the weights, or have 8 bits."""
    device, weights = s.config.ref_model_device, parts.weight_bytes(s.shape.parameters, s.weight)
    here = device is None or device.split(":")[0] == s.device_type
    eight_bit = s.mode.optimizer == "adamw8bit"
    moments = sum(map(parts.adam_8bit_bytes, s.shape.sizes)) if eight_bit else 2 * weights
    return {"weights": weights, "Adam's moments": moments, "reference": weights * (s.config.needs_reference and here)}


def rollout(s: Setting) -> list[Parts]:
    """The prompts; then a token step for all rows, in a cache that does not move, captured on a card."""
    shape, rows, columns, tensors = s.shape, s.config.generation_batch_size, s.length, DRAWING
    if s.device_type == "cuda":
        columns, tensors = fixed_columns(s.prompt_length, s.config.max_completion_length), CAPTURED_LOGITS
    prompt_tokens = s.config.prompts_per_step * (s.prompt_length - 1)
    # As transformers keeps a cache: where autocast is on, float32 like the keys that come out of their rotation.
    prefix = parts.cache_bytes(shape, prompt_tokens, 4 if s.mode.autocast else s.product)
    at_work = parts.forward_bytes(shape, prompt_tokens, s.product, s.weight)
    step = {
        "KV cache": prefix + parts.cache_bytes(shape, rows * columns, s.product),
        "drawing": 4 * tensors * rows * shape.vocabulary,
        # Until the rollout ends, autocast keeps the copies that it made for the prompts.
        "half copies": 2 * s.layer_copies + s.head_copy,
    }
    return [{"KV cache": prefix, "half copies": s.layer_copies, "activations": at_work}, step]


def logprobs(s: Setting) -> list[Parts]:
    """Log-probabilities without gradient: of the reference, or of the policy before several updates or for a KL."""
    several = s.config.updates_per_step > 1 or (s.config.log_kl and s.config.beta == 0)
    if not several and not resident(s)["reference"]:
        return [{}]
    copies = s.layer_copies if several else 0
    at_work = parts.forward_bytes(s.shape, s.tokens, s.product, s.weight)
    hidden = parts.weight_bytes((s.tokens + s.completion_tokens) * s.shape.width, s.weight)
    logits = parts.head_logprobs_bytes(s.shape, s.completion_tokens, s.chunk, s.product)
    layers = {"activations": at_work + s.masks, "half copies": copies}
    return [layers, {"head": logits, "activations": hidden, "half copies": copies + s.head_copy}]


def update(s: Setting) -> list[Parts]:
    """Forward and backward of the first micro-batch, and of another, to which those before it leave gradients."""
    several = s.config.update_batch_size > s.rows
    return _micro_batch(s, 0) + (_micro_batch(s, s.gradients) if several else [])


def _micro_batch(s: Setting, before: int) -> list[Parts]:
    """The end of the forward pass; in the backward pass the head, the last layer, the first layer, and the end.

    Layers that are checkpointed are computed again. At the end the embedding's gradient comes from its other end, too,
    and is added to the head's in place. If gradients of micro-batches before it are there, it stands beside them, and,
    if no chunks made the head's own, beside a sum.
    """
    checkpointing = s.config.gradient_checkpointing  # a layer keeps its input alone
    layers = s.shape.layers * (s.tokens * s.weight * s.shape.width if checkpointing else s.one_layer)
    kept, layer_copies = layers + s.masks + s.last, 0 if checkpointing else s.layer_copies  # in the graph
    forward = parts.head_logprobs_bytes(s.shape, s.completion_tokens, s.chunk, s.product)
    backward = parts.head_update_bytes(s.shape, s.completion_tokens, s.chunk, s.weight)
    # At work in a layer, beside all that it kept: in the MLP the gradients of product, activation and up.
    at_work = s.one_layer + 2 * s.product * s.shape.inner * s.tokens
    last_layer = kept - s.last + at_work - (0 if checkpointing else s.one_layer)
    of_layers = s.gradients if before else s.gradients - s.embedding
    sums = (s.shape.tied and s.chunk is None) + 1 if before else 0
    sizes = (
        (before, kept, s.layer_copies + s.head_copy, forward),
        (before, kept, layer_copies + s.head_copy, backward),
        (before, last_layer, layer_copies, s.head_gradient),
        (of_layers, at_work, 0, s.head_gradient),
        (s.gradients, 0, 0, s.head_gradient + sums * s.embedding),
    )
    return [dict(zip(("gradients", "activations", "half copies", "head"), each, strict=True)) for each in sizes]


def step(s: Setting) -> list[Parts]:
    r"""What the optimizer has in the air for the largest parameter, of n numbers.

    M = 57 \min(n, 2^{22}) \tag{8.27}

    That is AdamW with 8 bits, which works in float32 and on pieces: 14 float32 tensors and a byte. Compiled, on a card,
    it needs less. torch's AdamW, fused, needs nothing.
    """
    eight_bit = s.mode.optimizer == "adamw8bit"
    at_work = 57 * min(max(s.shape.sizes), PIECE) if eight_bit else 0  # scalar (8.27)
    return [{"gradients": s.gradients, "Adam at work": at_work}]


PHASES = {"rollout": rollout, "logprobs": logprobs, "update": update, "optimizer": step}
