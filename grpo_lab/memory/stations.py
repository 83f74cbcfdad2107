"""What is alive at the four stations of a step: rollout, scoring, update, optimizer step. Part name to bytes, each.

Where it matters in which moment of a station one looks, each moment is a candidate, and the largest counts.
"""

from grpo_lab.memory import parts
from grpo_lab.memory.setting import Setting
from grpo_lab.rollout.static import KEPT_SHARE

Parts = dict[str, int]
WORKSPACE = "workspace, at most"  # the part that is no tensor of torch's, and an upper bound


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
    return {"weights": weights, "Adam's moments": moments, "reference": reference, "decoder": _kept_decoder(s)}


def _decoder(s: Setting) -> Parts:
    """A cache that does not move, and what a captured step needs to run."""
    rows, shape = s.config.generation_batch_size, s.shape
    # Only a captured step has to fit prompts of other lengths.
    columns = parts.fixed_columns(s.prompt_length, s.config.max_completion_length) if s.on_card else s.length
    tensors = parts.DRAWING["captured step" if s.on_card else "step"]
    return {
        "KV cache": parts.cache_bytes(shape, rows * columns, s.product),
        "drawing": parts.drawing_bytes(rows, shape.vocabulary, tensors),
        "half copies": s.half_copies,
    }


def _kept_decoder(s: Setting) -> int:
    """A small decoder is kept for the next rollout, a large one is not."""
    total = sum(_decoder(s).values())
    return total if s.fixed_cache and s.on_card and total <= KEPT_SHARE * s.card_memory else 0


def rollout(s: Setting) -> Parts:
    """The prompts, each once; then a token step for all rows, at its worst moment."""
    rows, columns = s.config.generation_batch_size, s.length - 1
    prompt_tokens = s.config.prompts_per_step * (s.prompt_length - 1)
    of_layers = parts.weight_bytes(s.shape.linear, s.product) if s.mode.autocast else 0
    prefix = {"KV cache": _growing(s, prompt_tokens), "half copies": of_layers}
    prompts = prefix | {"activations": _forward(s, prompt_tokens)}
    if s.fixed_cache:
        # Until the rollout ends, autocast keeps the copies that it made for the prompts.
        decoder = {} if _kept_decoder(s) else _decoder(s)
        return _largest(prompts, decoder | {name: decoder.get(name, 0) + size for name, size in prefix.items()})
    step = {"KV cache": _growing(s, rows * columns), "half copies": s.half_copies}
    repeated = parts.repeated_bytes(s.shape, rows, columns, s.product) if s.config.prompts_per_step > 1 else 0
    one_layer = 3 * repeated if s.mode.autocast else 3 * repeated // 2  # in float32 first, then rounded
    appended = _growing(s, rows * columns) // (2 * s.shape.layers)
    attention = {"activations": one_layer + appended}
    drawing = {"drawing": parts.drawing_bytes(rows, s.shape.vocabulary, parts.DRAWING["generate"])}
    return _largest(prompts, step | attention, step | drawing)


def _growing(s: Setting, tokens: int) -> int:
    """A cache as transformers keeps it: where autocast is on, float32 like the keys that come out of their rotation."""
    return parts.cache_bytes(s.shape, tokens, 4 if s.mode.autocast else s.product)


def score(s: Setting) -> Parts:
    """Log-probabilities without gradient: of the reference, or of the policy before several updates or for a KL."""
    config, shape, e = s.config, s.shape, s.product
    on_card = bool(resident(s)["reference"])
    several = config.updates_per_step > 1 or (config.log_kl and config.beta == 0)
    if not several and not on_card:
        return {}
    rows, tokens, _ = _micro_batch(s)
    scored = rows * config.max_completion_length
    of_layers = s.half_copies - s.head_copy if several else 0
    cache = 0 if tokens == rows * s.length else _growing(s, rows * s.length)
    hidden = parts.weight_bytes((tokens + scored) * shape.width, s.weight)
    chunk = parts.chunk_tokens(shape, scored, s.device_type)
    layers = {"activations": _forward(s, tokens) + cache, "half copies": of_layers}
    logits = parts.head_score_bytes(shape, scored, chunk, e)
    head = {"head": logits, "activations": hidden, "half copies": of_layers + s.head_copy}
    return _largest(layers, head)


def _forward(s: Setting, tokens: int) -> int:
    return parts.forward_bytes(s.shape, tokens, s.product, s.weight)


def update(s: Setting) -> Parts:
    """Forward and backward of one micro-batch, at the worst of five moments; those before it leave their gradients."""
    rows, _, _ = _micro_batch(s)
    before = s.gradients if s.config.update_batch_size > rows else 0
    early = [{"gradients": before} | moment for moment in (*_around_the_head(s), _top_layer(s))]
    return _largest(*early, *_after_the_layers(s, before))


def _around_the_head(s: Setting) -> tuple[Parts, Parts]:
    """The last moment of the forward pass, and the first of the backward pass."""
    _, _, scored = _micro_batch(s)
    chunk, kept = parts.chunk_tokens(s.shape, scored, s.device_type), _activations(s)
    in_graph = s.head_copy if s.config.gradient_checkpointing else s.half_copies
    forward = parts.head_score_bytes(s.shape, scored, chunk, s.product)
    backward = parts.head_update_bytes(s.shape, scored, chunk, s.weight)
    last_of_forward = {"activations": kept, "half copies": s.half_copies, "head": forward}
    return last_of_forward, {"activations": kept, "half copies": in_graph, "head": backward}


def _top_layer(s: Setting) -> Parts:
    """The backward pass of the last layer, whose activations are computed again if layers are checkpointed."""
    checkpointing = s.config.gradient_checkpointing
    inner = _activations(s) - _last(s) + _layer_at_work(s) - (0 if checkpointing else _one_layer(s))
    copies = 0 if checkpointing else s.half_copies - s.head_copy
    return {"activations": inner, "half copies": copies, "head": s.head_gradient}


def _after_the_layers(s: Setting, before: int) -> tuple[Parts, Parts]:
    """The backward pass of the first layer, and the end.

    There the embedding's gradient comes from its other end, too, and is added to the head's in place. If gradients of
    micro-batches before it are there, it stands beside them, and, if no chunks made the head's own, beside a sum.
    """
    _, _, scored = _micro_batch(s)
    of_layers = s.gradients if before else s.gradients - parts.weight_bytes(s.embedding, s.weight)
    first = {"gradients": of_layers, "activations": _layer_at_work(s), "head": s.head_gradient}
    whole = s.shape.tied and parts.chunk_tokens(s.shape, scored, s.device_type) is None
    sums = (whole + 1 if before else 0) * parts.weight_bytes(s.embedding, s.weight)
    return first, {"gradients": s.gradients, "head": s.head_gradient + sums}


def _layer_at_work(s: Setting) -> int:
    _, tokens, _ = _micro_batch(s)
    return _one_layer(s) + parts.backward_bytes(s.shape, tokens, s.product)


def step(s: Setting) -> Parts:
    eight_bit, fused = s.mode.optimizer == "adamw8bit", s.on_card
    in_the_air = parts.step_bytes(max(s.shape.sizes), s.weight, eight_bit, fused)
    return {"gradients": s.gradients, "Adam at work": in_the_air}


STATIONS = {"rollout": rollout, "scoring": score, "update": update, "optimizer": step}


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
        tokens, chunk = max(s.config.prompts_per_step * s.prompt_length, rows := s.config.generation_batch_size), rows
    else:
        chunk = parts.chunk_tokens(s.shape, scored, s.device_type) or scored
    largest = max(rows * width + D * (rows + width) for rows, width in ((tokens, F), (chunk, V)))
    return {WORKSPACE: 4 * largest}


def _micro_batch(s: Setting) -> tuple[int, int, int]:
    """Rows, tokens that pass the layers, and tokens that are scored."""
    rows = s.config.per_device_train_batch_size
    prompts = rows if s.config.gradient_checkpointing else min(s.config.prompts_per_step, rows)
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
