"""What is alive at the four stations of a step: rollout, scoring, update, optimizer step. Part name to bytes, each.

Where it matters in which moment of a station one looks, each moment is a candidate, and the largest counts.
"""

from dataclasses import dataclass
from functools import cached_property

from grpo_lab.config import GRPOConfig
from grpo_lab.memory import parts
from grpo_lab.models.shapes import ModelShape
from grpo_lab.precision import Precision
from grpo_lab.rollout.static import KEPT_SHARE

Parts = dict[str, int]
WORKSPACE = "workspace, at most"  # the part that is no tensor of torch's, and an upper bound


@dataclass(frozen=True)
class Setting:
    """All that the plan depends on."""

    shape: ModelShape
    config: GRPOConfig
    mode: Precision
    prompt_length: int
    device_type: str
    card_memory: int

    @property
    def weight(self) -> int:
        """Bytes of a weight, and of a number of the residual stream."""
        return self.mode.weights.itemsize

    @property
    def product(self) -> int:
        """Bytes of a number in the products of forward and backward."""
        return (self.mode.autocast or self.mode.weights).itemsize

    @property
    def prompts(self) -> int:
        return self.config.prompts_per_step

    @property
    def length(self) -> int:
        return self.prompt_length + self.config.max_completion_length

    @property
    def fixed_cache(self) -> bool:
        asked = self.config.cache_implementation
        return asked == "static" or (asked is None and self.device_type == "cuda")

    @property
    def embedding(self) -> int:
        return self.shape.vocabulary * self.shape.width

    @property
    def bound(self) -> bool:
        """Whether the plan is an upper bound: in half precision, what a CPU takes depends on the processor."""
        return self.device_type == "cpu" and self.product < 4

    @cached_property
    def half_copies(self) -> int:
        """What autocast copies to half precision: the linear maps of the layers, and the head."""
        return parts.weight_bytes(self.shape.linear + self.embedding, self.product) if self.mode.autocast else 0


def resident(s: Setting) -> Parts:
    """What stays for the whole run."""
    shape, config = s.shape, s.config
    weights = parts.weight_bytes(shape.parameters, s.weight)
    on_card = config.ref_model_device is None or config.ref_model_device.split(":")[0] == s.device_type
    if s.mode.optimizer == "adamw8bit":
        moments = sum(parts.adam_8bit_bytes(size) for size in shape.sizes)
    else:
        moments = parts.adam_bytes(shape.parameters, s.weight)
    return {
        "weights": weights,
        "Adam's moments": moments,
        "reference": weights if config.beta > 0 and on_card else 0,
        "decoder": _kept_decoder(s),
    }


def _decoder(s: Setting) -> Parts:
    """A cache that does not move, and what a captured step needs to run."""
    rows, shape = s.config.generation_batch_size, s.shape
    columns = parts.fixed_columns(s.prompt_length, s.config.max_completion_length)
    tensors = parts.DRAWING["captured step" if s.device_type == "cuda" else "step"]
    return {
        "KV cache": parts.cache_bytes(shape, rows * columns, s.product),
        "drawing": parts.drawing_bytes(rows, shape.vocabulary, tensors),
        "half copies": s.half_copies,
    }


def _kept_decoder(s: Setting) -> int:
    """A small decoder is kept for the next rollout, a large one is not."""
    total = sum(_decoder(s).values())
    return total if s.fixed_cache and s.device_type == "cuda" and total <= KEPT_SHARE * s.card_memory else 0


def rollout(s: Setting) -> Parts:
    """The prompts, each once; then a token step for all rows, at its worst moment."""
    rows, columns = s.config.generation_batch_size, s.length - 1
    prompt_tokens = s.prompts * (s.prompt_length - 1)
    of_layers = parts.weight_bytes(s.shape.linear, s.product) if s.mode.autocast else 0
    prefix = {"KV cache": _growing(s, prompt_tokens), "half copies": of_layers}
    prompts = prefix | {"activations": _forward(s, prompt_tokens)}
    if s.fixed_cache:
        # Until the rollout ends, autocast keeps the copies that it made for the prompts.
        decoder = {} if _kept_decoder(s) else _decoder(s)
        return _largest(prompts, decoder | {name: decoder.get(name, 0) + size for name, size in prefix.items()})
    step = {"KV cache": _growing(s, rows * columns), "half copies": s.half_copies}
    repeated = parts.repeated_bytes(s.shape, rows, columns, s.product) if s.prompts > 1 else 0
    one_layer = 3 * repeated if s.mode.autocast else 3 * repeated // 2  # in float32 first, then rounded
    appended = _growing(s, rows * columns) // (2 * s.shape.layers)
    attention = {"activations": one_layer + appended}
    drawing = {"drawing": parts.drawing_bytes(rows, s.shape.vocabulary, parts.DRAWING["generate"])}
    return _largest(prompts, step | attention, step | drawing)


def _growing(s: Setting, tokens: int) -> int:
    """A cache as transformers keeps it: where autocast is on, float32 like the keys that come out of their rotation."""
    return parts.cache_bytes(s.shape, tokens, 4 if s.mode.autocast else s.product)


def score(s: Setting) -> Parts:
    """Log-probabilities without gradient: of the reference, or of the policy before several updates."""
    config, shape, e = s.config, s.shape, s.product
    on_card = bool(resident(s)["reference"])
    several = config.updates_per_step > 1
    if not several and not on_card:
        return {}
    rows, tokens, _ = _micro_batch(s)
    scored = rows * config.max_completion_length
    of_head = parts.weight_bytes(s.embedding, e) if s.mode.autocast else 0
    of_layers = s.half_copies - of_head if several else 0
    cache = 0 if tokens == rows * s.length else _growing(s, rows * s.length)
    hidden = parts.weight_bytes((tokens + scored) * shape.width, s.weight)
    chunk = parts.chunk_tokens(shape, scored, s.device_type)
    layers = {"activations": _forward(s, tokens) + cache, "half copies": of_layers}
    in_chunks = parts.head_score_bytes(shape, scored, chunk, e)
    head = {"head": in_chunks, "activations": hidden, "half copies": of_layers + of_head}
    return _largest(layers, head)


def _forward(s: Setting, tokens: int) -> int:
    return parts.forward_bytes(s.shape, tokens, s.product, s.weight)


def update(s: Setting) -> Parts:
    """Forward and backward of one micro-batch, at the worst of five moments."""
    config, shape, e = s.config, s.shape, s.product
    rows, tokens, scored = _micro_batch(s)
    embedding = parts.weight_bytes(s.embedding, s.weight)
    gradients = parts.weight_bytes(shape.parameters, s.weight)
    before = gradients if config.update_batch_size > rows else 0  # of the micro-batches before this one
    layer, kept = _one_layer(s), _activations(s)
    chunk = parts.chunk_tokens(shape, scored, s.device_type)
    head_copy = parts.weight_bytes(s.embedding, e) if s.mode.autocast else 0
    in_graph = head_copy if config.gradient_checkpointing else s.half_copies
    head_gradient = embedding if shape.tied else 0
    one_layer = layer + parts.backward_bytes(shape, tokens, e)
    inner = kept - _last(s) + one_layer - (0 if config.gradient_checkpointing else layer)
    forward = {
        "activations": kept,
        "half copies": s.half_copies,
        "head": parts.head_score_bytes(shape, scored, chunk, e),
    }
    head = {
        "activations": kept,
        "half copies": in_graph,
        "head": parts.head_update_bytes(shape, scored, chunk, s.weight),
    }
    top_layer = {"activations": inner, "half copies": in_graph - head_copy, "head": head_gradient}
    of_layers = gradients if before else gradients - embedding
    bottom_layer = {"gradients": of_layers, "activations": one_layer, "head": head_gradient}
    # The embedding's gradient from its other end, a sum so far, and, if no chunks made the head's own, a sum of both.
    sums = (shape.tied and chunk is None) + bool(before)
    end = {"gradients": gradients, "head": head_gradient + sums * embedding}
    return _largest(*({"gradients": before} | moment for moment in (forward, head, top_layer)), bottom_layer, end)


def step(s: Setting) -> Parts:
    eight_bit = s.mode.optimizer == "adamw8bit"
    fused = s.device_type == "cuda"
    in_the_air = parts.step_bytes(max(s.shape.sizes), s.weight, eight_bit, fused)
    return {"gradients": parts.weight_bytes(s.shape.parameters, s.weight), "Adam at work": in_the_air}


def workspace(s: Setting, station: str) -> Parts:
    """What a CPU may add in half precision: the station's largest product made in float32, both factors included.

    An upper bound. A processor that multiplies such numbers itself adds next to nothing; others, what their library
    likes. On a card, and in float32, there is nothing to add.
    """
    if not s.bound or station == "optimizer":
        return {}
    D, F, V = s.shape.width, s.shape.inner, s.shape.vocabulary
    _, tokens, scored = _micro_batch(s)
    if station == "rollout":
        tokens, chunk = max(s.prompts * s.prompt_length, rows := s.config.generation_batch_size), rows
    else:
        chunk = parts.chunk_tokens(s.shape, scored, s.device_type) or scored
    largest = max(rows * width + D * (rows + width) for rows, width in ((tokens, F), (chunk, V)))
    return {WORKSPACE: 4 * largest}


def _micro_batch(s: Setting) -> tuple[int, int, int]:
    """Rows, tokens that pass the layers, and tokens that are scored."""
    rows = s.config.per_device_train_batch_size
    prompts = rows if s.config.gradient_checkpointing else min(s.prompts, rows)
    tokens = parts.micro_batch_tokens(rows, prompts, s.prompt_length, s.config.max_completion_length)
    return rows, tokens, rows * s.config.max_completion_length


def _one_layer(s: Setting) -> int:
    rows, tokens, _ = _micro_batch(s)
    copies = 3 if s.mode.autocast else 0
    kept = tokens * parts.layer_token_bytes(s.shape, s.product, s.weight, copies)
    return kept + parts.repeated_bytes(s.shape, rows, s.length, s.product)


def _activations(s: Setting) -> int:
    """What the forward pass keeps: all of each layer or only its input; the last norm, the mask, the scored states."""
    rows, tokens, _ = _micro_batch(s)
    shape, r = s.shape, s.weight
    per_layer = tokens * r * shape.width if s.config.gradient_checkpointing else _one_layer(s)
    queries = s.length if tokens == rows * s.length else s.config.max_completion_length - 1
    mask = parts.mask_bytes(rows, queries, s.length, s.product)
    return shape.layers * per_layer + mask + _last(s)


def _last(s: Setting) -> int:
    """What the last norm and the head keep."""
    _, tokens, scored = _micro_batch(s)
    return tokens * ((4 + s.weight) * s.shape.width + 4) + scored * s.weight * s.shape.width


def _largest(*moments: Parts) -> Parts:
    return max(moments, key=lambda moment: sum(moment.values()))
