"""What is alive in the four phases of a step: rollout, log-probabilities, update, optimizer step.

A phase is a list of moments, part name to bytes, in the order in which they come. The largest is what the phase needs.
"""

from dataclasses import dataclass

from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import Precision
from grpo_lab.memory import parts
from grpo_lab.models.shapes import ModelShape

Parts = dict[str, int]


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
        head = shape.vocabulary * shape.width
        self.rows = rows = c.rows_at_once  # at a time, in an update
        self.on_card = self.device_type == "cuda"
        self.weight = self.mode.weights.itemsize  # bytes of a weight, and of a number of the residual stream
        self.product = (autocast or self.mode.weights).itemsize  # of a number in the products of forward and backward
        self.length = self.prompt_length + c.max_completion_length
        # Of a micro-batch: the tokens that pass the layers, those of completions, and how many of them at a time.
        self.tokens = parts.micro_batch_tokens(rows, self.prompts, self.prompt_length, c.max_completion_length)
        self.completion_tokens = rows * c.max_completion_length
        self.chunk = parts.chunk_tokens(shape, self.completion_tokens, self.device_type) if self.chunked else None
        self.gradients = parts.weight_bytes(shape.parameters, self.weight)
        self.embedding = parts.weight_bytes(head, self.weight)  # the output's, and its gradient
        # The gradient of an output embedding that is the input's, too, waits for the one from there.
        self.head_gradient = self.embedding if shape.tied else 0
        # What autocast copies to half precision: the head, and the linear maps of the layers.
        self.head_copy = parts.weight_bytes(head, self.product) if autocast else 0
        self.layer_copies = parts.weight_bytes(shape.linear, self.product) if autocast else 0
        # What is kept for the backward pass: by one layer; by the last norm and the head; the masks of all layers, of
        # the completions, each with its prompt, and of the prompts, for the query heads that share a key head.
        L, width, columns = self.prompt_length, shape.width, rows * self.length + self.prompts * self.prompt_length
        of_a_token = parts.layer_token_bytes(shape, self.product, self.weight, copies=3 if autocast else 0)
        self.one_layer = self.tokens * of_a_token + parts.repeated_bytes(shape, 1, columns, self.product)
        self.last = self.tokens * ((4 + self.weight) * width + 4) + self.completion_tokens * self.weight * width
        in_line = shape.queries // shape.keys
        self.masks = parts.mask_bytes(rows, in_line * (c.max_completion_length - 1), self.length, self.product)
        self.masks += parts.mask_bytes(self.prompts, in_line * L, L, self.product)

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
    """What stays for the whole run."""
    shape, config = s.shape, s.config
    weights = parts.weight_bytes(shape.parameters, s.weight)
    on_card = config.ref_model_device is None or config.ref_model_device.split(":")[0] == s.device_type
    if s.mode.optimizer == "adamw8bit":
        moments = sum(parts.adam_8bit_bytes(size) for size in shape.sizes)
    else:
        moments = parts.adam_bytes(shape.parameters, s.weight)
    reference = weights if config.needs_reference and on_card else 0
    return {"weights": weights, "Adam's moments": moments, "reference": reference}


def rollout(s: Setting) -> list[Parts]:
    """The prompts; then a token step for all rows, in a cache that does not move, captured on a card."""
    shape, rows, length = s.shape, s.config.generation_batch_size, s.length
    prompt_tokens = s.config.prompts_per_step * (s.prompt_length - 1)
    # As transformers keeps a cache: where autocast is on, float32 like the keys that come out of their rotation.
    prefix = parts.cache_bytes(shape, prompt_tokens, 4 if s.mode.autocast else s.product)
    at_work = parts.forward_bytes(shape, prompt_tokens, s.product, s.weight)
    columns = parts.fixed_columns(s.prompt_length, s.config.max_completion_length) if s.on_card else length
    tensors = parts.DRAWING["captured step" if s.on_card else "step"]
    step = {
        "KV cache": prefix + parts.cache_bytes(shape, rows * columns, s.product),
        "drawing": parts.drawing_bytes(rows, shape.vocabulary, tensors),
        # Until the rollout ends, autocast keeps the copies that it made for the prompts.
        "half copies": 2 * s.layer_copies + s.head_copy,
    }
    return [{"KV cache": prefix, "half copies": s.layer_copies, "activations": at_work}, step]


def logprobs(s: Setting) -> list[Parts]:
    """Log-probabilities without gradient: of the reference, or of the policy before several updates or for a KL."""
    config, shape = s.config, s.shape
    several = config.updates_per_step > 1 or (config.log_kl and config.beta == 0)
    if not several and not resident(s)["reference"]:
        return [{}]
    copies = s.layer_copies if several else 0
    in_the_air = parts.forward_bytes(s.shape, s.tokens, s.product, s.weight)
    layers = {"activations": in_the_air + s.masks, "half copies": copies}
    hidden = parts.weight_bytes((s.tokens + s.completion_tokens) * shape.width, s.weight)
    logits = parts.head_logprobs_bytes(shape, s.completion_tokens, s.chunk, s.product)
    return [layers, {"head": logits, "activations": hidden, "half copies": copies + s.head_copy}]


def update(s: Setting) -> list[Parts]:
    """Forward and backward of the first micro-batch, and of another, to which those before it leave gradients."""
    several = s.config.update_batch_size > s.config.rows_at_once
    return [moment for before in ([0, s.gradients] if several else [0]) for moment in _micro_batch(s, before)]


def _micro_batch(s: Setting, before: int) -> list[Parts]:
    """The end of the forward pass; in the backward pass the head, the last layer, the first layer, and the end.

    Layers that are checkpointed are computed again. At the end the embedding's gradient comes from its other end, too,
    and is added to the head's in place. If gradients of micro-batches before it are there, it stands beside them, and,
    if no chunks made the head's own, beside a sum.
    """
    checkpointing = s.config.gradient_checkpointing  # a layer keeps its input alone
    kept = s.shape.layers * (s.tokens * s.weight * s.shape.width if checkpointing else s.one_layer) + s.masks + s.last
    layer_copies = 0 if checkpointing else s.layer_copies  # in the graph
    forward = parts.head_logprobs_bytes(s.shape, s.completion_tokens, s.chunk, s.product)
    backward = parts.head_update_bytes(s.shape, s.completion_tokens, s.chunk, s.weight)
    at_work = s.one_layer + parts.backward_bytes(s.shape, s.tokens, s.product)
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
    at_work = parts.step_bytes(max(s.shape.sizes), s.mode.optimizer == "adamw8bit")
    return [{"gradients": s.gradients, "Adam at work": at_work}]


PHASES = {"rollout": rollout, "logprobs": logprobs, "update": update, "optimizer": step}
