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

    @property
    def rows(self) -> int:
        """At a time, in an update."""
        return self.config.rows_at_once

    def __post_init__(self):
        shape, c, autocast = self.shape, self.config, self.mode.autocast
        rows, head = c.rows_at_once, shape.vocabulary * shape.width
        self.on_card = self.device_type == "cuda"
        self.weight = self.mode.weights.itemsize  # bytes of a weight, and of a number of the residual stream
        self.product = (autocast or self.mode.weights).itemsize  # of a number in the products of forward and backward
        self.length = self.prompt_length + c.max_completion_length
        # Of a micro-batch: the tokens that pass the layers, those of completions, and how many of them at a time.
        self.prompts = min(c.prompts_per_step, rows)
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
    """The prompts; then a token step for all rows."""
    prompt_tokens = s.config.prompts_per_step * (s.prompt_length - 1)
    prefix = {"KV cache": _growing(s, prompt_tokens), "half copies": s.layer_copies}
    # Until the rollout ends, autocast keeps the copies that it made for the prompts.
    step = {name: size + prefix.get(name, 0) for name, size in _decoder(s).items()}
    return [prefix | {"activations": parts.forward_bytes(s.shape, prompt_tokens, s.product, s.weight)}, step]


def _decoder(s: Setting) -> Parts:
    """A cache that does not move, and what a step needs, captured on a card."""
    rows, shape = s.config.generation_batch_size, s.shape
    columns = parts.fixed_columns(s.prompt_length, s.config.max_completion_length) if s.on_card else s.length
    tensors = parts.DRAWING["captured step" if s.on_card else "step"]
    return {
        "KV cache": parts.cache_bytes(shape, rows * columns, s.product),
        "drawing": parts.drawing_bytes(rows, shape.vocabulary, tensors),
        "half copies": s.layer_copies + s.head_copy,
    }


def _growing(s: Setting, tokens: int) -> int:
    """A cache as transformers keeps it: where autocast is on, float32 like the keys that come out of their rotation."""
    return parts.cache_bytes(s.shape, tokens, 4 if s.mode.autocast else s.product)


def logprobs(s: Setting) -> list[Parts]:
    """Log-probabilities without gradient: of the reference, or of the policy before several updates or for a KL."""
    config, shape = s.config, s.shape
    several = config.updates_per_step > 1 or (config.log_kl and config.beta == 0)
    if not several and not resident(s)["reference"]:
        return [{}]
    copies = s.layer_copies if several else 0
    in_the_air = parts.forward_bytes(s.shape, s.tokens, s.product, s.weight)
    layers = {"activations": in_the_air + masks(s), "half copies": copies}
    hidden = parts.weight_bytes((s.tokens + s.completion_tokens) * shape.width, s.weight)
    logits = parts.head_logprobs_bytes(shape, s.completion_tokens, s.chunk, s.product)
    return [layers, {"head": logits, "activations": hidden, "half copies": copies + s.head_copy}]


def update(s: Setting) -> list[Parts]:
    """Forward and backward of the first micro-batch, and of another, to which those before it leave gradients."""
    several = s.config.update_batch_size > s.config.rows_at_once
    return [moment for before in ([0, s.gradients] if several else [0]) for moment in _micro_batch(s, before)]


def _micro_batch(s: Setting, before: int) -> list[Parts]:
    early = [{"gradients": before} | moment for moment in (*_around_the_head(s), _top_layer(s))]
    return [*early, *_after_the_layers(s, before)]


def _around_the_head(s: Setting) -> tuple[Parts, Parts]:
    """The last moment of the forward pass, and the first of the backward pass."""
    kept, copies = activations(s), s.layer_copies + s.head_copy
    in_graph = s.head_copy if s.config.gradient_checkpointing else copies
    forward = parts.head_logprobs_bytes(s.shape, s.completion_tokens, s.chunk, s.product)
    backward = parts.head_update_bytes(s.shape, s.completion_tokens, s.chunk, s.weight)
    last_of_forward = {"activations": kept, "half copies": copies, "head": forward}
    return last_of_forward, {"activations": kept, "half copies": in_graph, "head": backward}


def _top_layer(s: Setting) -> Parts:
    """The backward pass of the last layer, whose activations are computed again if layers are checkpointed."""
    checkpointing = s.config.gradient_checkpointing
    inner = activations(s) - _last(s) + _layer_at_work(s) - (0 if checkpointing else _one_layer(s))
    return {"activations": inner, "half copies": 0 if checkpointing else s.layer_copies, "head": s.head_gradient}


def _after_the_layers(s: Setting, before: int) -> tuple[Parts, Parts]:
    """The backward pass of the first layer, and the end.

    There the embedding's gradient comes from its other end, too, and is added to the head's in place. If gradients of
    micro-batches before it are there, it stands beside them, and, if no chunks made the head's own, beside a sum.
    """
    of_layers = s.gradients if before else s.gradients - s.embedding
    first = {"gradients": of_layers, "activations": _layer_at_work(s), "head": s.head_gradient}
    sums = (s.shape.tied and s.chunk is None) + 1 if before else 0
    return first, {"gradients": s.gradients, "head": s.head_gradient + sums * s.embedding}


def _layer_at_work(s: Setting) -> int:
    return _one_layer(s) + parts.backward_bytes(s.shape, s.tokens, s.product)


def step(s: Setting) -> list[Parts]:
    at_work = parts.step_bytes(max(s.shape.sizes), s.mode.optimizer == "adamw8bit")
    return [{"gradients": s.gradients, "Adam at work": at_work}]


PHASES = {"rollout": rollout, "logprobs": logprobs, "update": update, "optimizer": step}


def _one_layer(s: Setting) -> int:
    kept = s.tokens * parts.layer_token_bytes(s.shape, s.product, s.weight, copies=3 if s.mode.autocast else 0)
    columns = s.rows * s.length + s.prompts * s.prompt_length
    return kept + parts.repeated_bytes(s.shape, 1, columns, s.product)


def activations(s: Setting) -> int:
    """What the forward pass keeps: all of each layer or only its input; the last norm, the masks, the head's input."""
    per_layer = s.tokens * s.weight * s.shape.width if s.config.gradient_checkpointing else _one_layer(s)
    return s.shape.layers * per_layer + masks(s) + _last(s)


def masks(s: Setting) -> int:
    """Of the completions, each with its prompt, and of the prompts; for the query heads that share a key head."""
    in_line, L = s.shape.queries // s.shape.keys, s.prompt_length
    of_completions = parts.mask_bytes(s.rows, in_line * (s.config.max_completion_length - 1), s.length, s.product)
    return of_completions + parts.mask_bytes(s.prompts, in_line * L, L, s.product)


def _last(s: Setting) -> int:
    """What the last norm and the head keep."""
    return s.tokens * ((4 + s.weight) * s.shape.width + 4) + s.completion_tokens * s.weight * s.shape.width
