"""The bytes that are alive in the four phases of a step: rollout, log-probabilities, update, optimizer step.

A phase is a list of snapshots in chronological order. A snapshot is a dict from the name of each part, such as
"weights", to its bytes. The phase needs as much memory as its largest snapshot.
"""

from dataclasses import dataclass
from functools import cached_property

import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import Precision
from grpo_lab.memory import formulas
from grpo_lab.models.shapes import ModelShape
from grpo_lab.rollout.decoding.graph_decoder import CAPTURED_LOGITS, fixed_columns
from grpo_lab.rollout.forward.attention import BY_ROW, LONGEST_MASKED, aligned_columns, kernel_of_long_rows, key_copies
from grpo_lab.rollout.forward.model_logprobs import adds_head_gradient_in_place, head_chunk_tokens
from grpo_lab.trainer.optim.adamw_8bit import PIECE_SIZE

BytesByPart = dict[str, int]
# Number of float32 tensors of the size of the logits while sampling: logits, log-softmax, two of probabilities.
SAMPLING_TENSORS = 4


@dataclass(frozen=True)
class RunSizes:
    """The sizes of a run in rows and tokens, which follow from its model, settings, precision and device."""

    shape: ModelShape
    config: GRPOConfig
    precision: Precision
    prompt_length: int  # L, number of tokens of the longest prompt
    device_type: str  # "cuda" or "cpu"
    logits_in_chunks: bool = True  # False if all logits are computed at once, as the model's own head does
    shares_prompts: bool = True  # True if a prompt is computed once for all its completions, False if once for each
    rollout_parts: int = 1  # number of parts of a step's prompts that are sampled one after another
    has_environment: bool = False  # True if an environment replies; all episodes are then sampled in one part

    @property
    def microbatch_size(self) -> int:
        return self.config.microbatch_size

    @property
    def row_length(self) -> int:
        """Tokens of a prompt and its completion."""
        return self.prompt_length + self.config.max_completion_length

    @property
    def weight_itemsize(self) -> int:
        """Bytes of a weight; a number of the residual stream takes the same."""
        return self.precision.weights.itemsize

    @property
    def matmul_dtype(self) -> torch.dtype:
        """The precision of the matrix products of forward and backward pass."""
        return self.precision.autocast or self.precision.weights

    @property
    def matmul_itemsize(self) -> int:
        """Bytes of a number in the matrix products."""
        return self.matmul_dtype.itemsize

    @property
    def heads_per_key(self) -> int:
        """Query heads that share a key head."""
        return self.shape.query_width // self.shape.key_width

    @cached_property
    def prompts_per_microbatch(self) -> int:
        """The largest number of prompts in a micro-batch.

        Rows of the same prompt lie next to each other in a batch (trainer/experience.py).
        """
        config, size, group = self.config, self.microbatch_size, self.config.num_generations
        if not self.shares_prompts:
            return size
        whole_groups = config.update_batch_size == config.generation_batch_size
        if whole_groups and (size % group == 0 or group % size == 0):
            return max(size // group, 1)
        return min(config.prompts_per_step, size)

    @property
    def prompts_per_rollout_part(self) -> int:
        """Prompts of one part of a rollout."""
        return self.config.prompts_per_step // self.rollout_parts

    @property
    def completion_input_tokens(self) -> int:
        """Tokens of completions that pass the layers: all but the last of each, which predicts nothing."""
        return self.microbatch_size * (self.config.max_completion_length - 1)

    @property
    def layer_tokens(self) -> int:
        """Tokens of a micro-batch that pass the layers."""
        return self.prompts_per_microbatch * self.prompt_length + self.completion_input_tokens

    @property
    def head_tokens(self) -> int:
        """Tokens of a micro-batch that the head predicts."""
        return self.microbatch_size * self.config.max_completion_length

    @cached_property
    def chunk_tokens(self) -> int | None:
        """Tokens that pass the head at a time; None if all tokens pass it at once."""
        shape = self.shape
        chunk = head_chunk_tokens(self.head_tokens, shape.vocabulary, shape.width, self.device_type)
        return chunk if self.logits_in_chunks else None


def resident_bytes(sizes: RunSizes) -> BytesByPart:
    """Return the bytes that stay allocated for the whole run: weights, Adam's moments and the reference model.

    Adam's moments have the precision of the weights, or 8 bits.
    """
    weights = formulas.weight_bytes(sizes.shape.parameters, sizes.weight_itemsize)
    eight_bit = sizes.precision.optimizer == "adamw8bit"
    adam_moments = sum(map(formulas.adam_8bit_bytes, sizes.shape.parameter_sizes)) if eight_bit else 2 * weights
    reference_device = sizes.config.ref_model_device
    has_reference = sizes.config.needs_reference and (
        reference_device is None or reference_device.split(":")[0] == sizes.device_type
    )
    return {"weights": weights, "Adam's moments": adam_moments, "reference": weights if has_reference else 0}


def gradient_bytes(sizes: RunSizes) -> int:
    """Return the bytes of the gradients of all weights, in the precision of the weights."""
    return formulas.weight_bytes(sizes.shape.parameters, sizes.weight_itemsize)


def layer_copy_bytes(sizes: RunSizes) -> int:
    """Return the bytes of the half-precision copies of the layers' linear maps that autocast makes."""
    linear = sizes.shape.linear_parameters
    return formulas.weight_bytes(linear, sizes.matmul_itemsize) if sizes.precision.autocast else 0


def head_copy_bytes(sizes: RunSizes) -> int:
    """Return the bytes of the half-precision copy of the head that autocast makes."""
    head = sizes.shape.vocabulary * sizes.shape.width
    return formulas.weight_bytes(head, sizes.matmul_itemsize) if sizes.precision.autocast else 0


def mask_bytes(sizes: RunSizes) -> int:
    """Return the bytes of the two attention masks that all layers share: for the completions, and for the prompts.

    If a run with longer rows than `LONGEST_MASKED` also has micro-batches of shorter rows, their mask, of at most
    `LONGEST_MASKED` columns, is covered by the reserve.
    """
    completions = _mask_bytes_of_rows(sizes, sizes.completion_input_tokens, sizes.row_length - 1)
    prompt_tokens = sizes.prompts_per_microbatch * sizes.prompt_length
    return completions + _mask_bytes_of_rows(sizes, prompt_tokens, sizes.prompt_length)


def prefill_mask_bytes(sizes: RunSizes) -> int:
    """Return the bytes of the mask of all prompts of a part of a rollout, without the last token of each."""
    length = sizes.prompt_length - 1
    return _mask_bytes_of_rows(sizes, sizes.prompts_per_rollout_part * length, length)


def _mask_bytes_of_rows(sizes: RunSizes, queries: int, length: int) -> int:
    """Return the bytes of the mask of some queries in rows of `length` tokens; above `LONGEST_MASKED` there is none.

    Only the masks grow with the square of a length. They have a row for each query head that shares a key head.
    """
    if length > LONGEST_MASKED:
        return 0
    return sizes.matmul_itemsize * sizes.heads_per_key * queries * aligned_columns(length)


def rollout_snapshots(sizes: RunSizes) -> list[BytesByPart]:
    """Return two snapshots of a rollout: the forward pass of the prompts, and a decoding step of all rows of a part."""
    prompt_tokens = sizes.prompts_per_rollout_part * (sizes.prompt_length - 1)
    # The prompts' cache is transformers'. Under autocast it is float32, like the rotated keys that it stores.
    cache_itemsize = 4 if sizes.precision.autocast else sizes.matmul_itemsize
    prompt_cache_bytes = formulas.cache_bytes(sizes.shape, prompt_tokens, cache_itemsize)
    working_memory = formulas.forward_bytes(sizes.shape, prompt_tokens, sizes.matmul_itemsize, sizes.weight_itemsize)
    prefill = {
        "KV cache": prompt_cache_bytes,
        "autocast cache": layer_copy_bytes(sizes),
        "activations": working_memory + prefill_mask_bytes(sizes),
    }
    return [prefill, _decoding_step(sizes, prompt_cache_bytes)]


def _decoding_step(sizes: RunSizes, prompt_cache_bytes: int) -> BytesByPart:
    """Return the snapshot of a decoding step, in which the prompts' own cache is still alive.

    Decoding uses a cache of fixed size, and on a GPU a captured graph.
    """
    rollout_rows = sizes.config.generation_batch_size
    rows = rollout_rows // sizes.rollout_parts
    if sizes.device_type == "cuda":
        columns = fixed_columns(sizes.prompt_length, sizes.config.max_completion_length)
        logits_per_row = CAPTURED_LOGITS
    else:
        columns, logits_per_row = sizes.row_length, SAMPLING_TENSORS
    noise_rows = rollout_rows if sizes.rollout_parts > 1 else 0  # each part draws the noise of all rows of the rollout
    return {
        "KV cache": prompt_cache_bytes + formulas.cache_bytes(sizes.shape, rows * columns, sizes.matmul_itemsize),
        "sampling": 4 * (logits_per_row * rows + noise_rows) * sizes.shape.vocabulary,
        # Autocast keeps the copies that it made for the prompts until the rollout ends.
        "autocast cache": 2 * layer_copy_bytes(sizes) + head_copy_bytes(sizes),
    }


def logprob_snapshots(sizes: RunSizes) -> list[BytesByPart]:
    """Return two snapshots of computing log-probabilities without gradient: in the layers, and in the head.

    They are computed under the reference, if it is on this device; and under the policy, if a step has several updates
    or a KL is logged that the loss does not contain.
    """
    needs_policy_logprobs = sizes.config.updates_per_step > 1 or (sizes.config.log_kl and sizes.config.beta == 0)
    if not needs_policy_logprobs and not resident_bytes(sizes)["reference"]:
        return [{}]
    layer_copies = layer_copy_bytes(sizes) if needs_policy_logprobs else 0
    shape, itemsize, weight_itemsize = sizes.shape, sizes.matmul_itemsize, sizes.weight_itemsize
    working_memory = formulas.forward_bytes(shape, sizes.layer_tokens, itemsize, weight_itemsize)
    hidden_bytes = formulas.weight_bytes((sizes.layer_tokens + sizes.head_tokens) * shape.width, weight_itemsize)
    logits_bytes = formulas.head_logprobs_bytes(shape, sizes.head_tokens, sizes.chunk_tokens, itemsize)
    in_layers = {"activations": working_memory + mask_bytes(sizes), "autocast cache": layer_copies}
    copies = layer_copies + head_copy_bytes(sizes)
    return [in_layers, {"head": logits_bytes, "activations": hidden_bytes, "autocast cache": copies}]


def update_snapshots(sizes: RunSizes) -> list[BytesByPart]:
    """Return the snapshots of the first micro-batch of an update, and of a later one, if there is one."""
    snapshots = _microbatch_snapshots(sizes, is_first=True)
    if sizes.config.update_batch_size > sizes.microbatch_size:
        snapshots += _microbatch_snapshots(sizes, is_first=False)
    return snapshots


def _microbatch_snapshots(sizes: RunSizes, *, is_first: bool) -> list[BytesByPart]:
    """Return five snapshots of a micro-batch: the end of its forward pass, and four of its backward pass.

    Checkpointed layers keep only their input, and are computed again in the backward pass. All amounts are bytes.

    is_first: Whether it is the first micro-batch of its update; if not, the gradients of the earlier ones are alive.
    """
    shape, checkpointing = sizes.shape, sizes.config.gradient_checkpointing
    layer_bytes = layer_activation_bytes(sizes)
    layer_input_bytes = sizes.layer_tokens * sizes.weight_itemsize * shape.width
    bytes_before_head = shape.layers * (layer_input_bytes if checkpointing else layer_bytes) + mask_bytes(sizes)
    graph_bytes = bytes_before_head + head_activation_bytes(sizes)
    # The backward pass of a layer needs what the layer kept, and two gradients of the MLP's width.
    layer_backward_bytes = layer_bytes + 2 * sizes.matmul_itemsize * shape.mlp_width * sizes.layer_tokens
    last_layer_backward_bytes = bytes_before_head + layer_backward_bytes - (0 if checkpointing else layer_bytes)
    layer_copies, head_copy = layer_copy_bytes(sizes), head_copy_bytes(sizes)
    kept_layer_copies = 0 if checkpointing else layer_copies
    chunk, itemsize = sizes.chunk_tokens, sizes.matmul_itemsize
    head_forward_bytes = formulas.head_logprobs_bytes(shape, sizes.head_tokens, chunk, itemsize)
    head_backward_bytes = formulas.head_update_bytes(shape, sizes.head_tokens, chunk, sizes.weight_itemsize)
    embedding = formulas.weight_bytes(shape.vocabulary * shape.width, sizes.weight_itemsize)
    # The gradient of a tied output embedding is kept until that of the input embedding is added to it.
    head_gradient = embedding if shape.has_tied_head else 0
    gradients = gradient_bytes(sizes)
    earlier_gradients = 0 if is_first else gradients
    layer_gradients = gradients - embedding if is_first else gradients
    head_gradients_at_end = head_gradient if is_first else head_gradient + _new_embedding_gradients(sizes) * embedding
    return [
        # the end of the forward pass
        _snapshot(earlier_gradients, activations=graph_bytes, copies=layer_copies + head_copy, head=head_forward_bytes),
        # the backward pass: in the head, in the last layer, in the first layer, and in the input embedding
        _snapshot(
            earlier_gradients, activations=graph_bytes, copies=kept_layer_copies + head_copy, head=head_backward_bytes
        ),
        _snapshot(
            earlier_gradients, activations=last_layer_backward_bytes, copies=kept_layer_copies, head=head_gradient
        ),
        _snapshot(layer_gradients, activations=layer_backward_bytes, copies=0, head=head_gradient),
        _snapshot(gradients, activations=0, copies=0, head=head_gradients_at_end),
    ]


def _snapshot(gradients: int, *, activations: int, copies: int, head: int) -> BytesByPart:
    """Return a snapshot from the bytes of its parts; `copies` are the half-precision copies that autocast makes."""
    return {"gradients": gradients, "activations": activations, "autocast cache": copies, "head": head}


def layer_activation_bytes(sizes: RunSizes) -> int:
    """Return the bytes that a layer keeps for the backward pass, with keys and values for each row that attends."""
    shape, itemsize = sizes.shape, sizes.matmul_itemsize
    autocast_copies = 3 if sizes.precision.autocast else 0
    token_bytes = formulas.layer_token_bytes(shape, itemsize, sizes.weight_itemsize, copies=autocast_copies)
    completion_keys = sizes.microbatch_size * sizes.row_length * _key_copies(sizes, sizes.row_length - 1)
    prompt_keys = sizes.prompts_per_microbatch * sizes.prompt_length * _key_copies(sizes, sizes.prompt_length)
    keys_and_values = formulas.cache_bytes(shape, completion_keys + prompt_keys, itemsize) // shape.layers
    return sizes.layer_tokens * token_bytes + keys_and_values + _padding_bytes(sizes)


def _key_copies(sizes: RunSizes, length: int) -> int:
    """Return the number of copies that a row of `length` tokens keeps of each of its keys."""
    if length <= LONGEST_MASKED:
        return 1
    return key_copies(sizes.device_type, sizes.matmul_dtype, sizes.heads_per_key)


def _padding_bytes(sizes: RunSizes) -> int:
    """Return the bytes of the zero queries that pad long rows, and of their outputs, if each row is a call."""
    is_padded = kernel_of_long_rows(sizes.device_type, sizes.matmul_dtype) == BY_ROW
    if not is_padded or sizes.row_length - 1 <= LONGEST_MASKED:
        return 0
    return 2 * sizes.microbatch_size * sizes.prompt_length * sizes.shape.query_width * sizes.matmul_itemsize


def head_activation_bytes(sizes: RunSizes) -> int:
    """Return the bytes that the last norm and the head keep for the backward pass."""
    norm_bytes = (4 + sizes.weight_itemsize) * sizes.shape.width + 4
    return sizes.layer_tokens * norm_bytes + sizes.head_tokens * sizes.weight_itemsize * sizes.shape.width


def _new_embedding_gradients(sizes: RunSizes) -> int:
    """Return how many gradients of the embedding are alive at the end of a later micro-batch, beside the earlier ones'.

    One is new, and a sum with the earlier gradient that is not made in place is a second one. For tied embeddings, the
    input embedding's gradient is added to the head's. With chunks it is always added in place; without, only if
    `adds_head_gradient_in_place`.
    """
    adds_in_place = sizes.chunk_tokens is not None or adds_head_gradient_in_place(
        sizes.shape.vocabulary, sizes.precision.autocast is not None
    )
    return 2 if sizes.shape.has_tied_head and not adds_in_place else 1


def optimizer_snapshots(sizes: RunSizes) -> list[BytesByPart]:
    r"""Compute the snapshot of an optimizer step, with the optimizer's working memory for n weights.

    M = 28 \min(n, 2^{22}) \tag{8.11}

    This holds for 8-bit AdamW, which processes the weights in pieces of at most 2^22 numbers and needs seven float32
    tensors of the size of a piece. torch's fused AdamW needs no working memory.
    """
    eight_bit = sizes.precision.optimizer == "adamw8bit"
    working_memory = 28 * min(sum(sizes.shape.parameter_sizes), PIECE_SIZE) if eight_bit else 0  # scalar (8.11)
    return [{"gradients": gradient_bytes(sizes), "Adam at work": working_memory}]


# The function that returns the snapshots of each phase, by the name of the phase.
SNAPSHOTS_BY_PHASE = {
    "rollout": rollout_snapshots,
    "logprobs": logprob_snapshots,
    "update": update_snapshots,
    "optimizer": optimizer_snapshots,
}
