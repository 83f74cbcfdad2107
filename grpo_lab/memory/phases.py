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
    """The sizes of a run in rows, tokens and bytes, which follow from its model, settings, precision and device."""

    shape: ModelShape
    config: GRPOConfig
    precision: Precision
    prompt_length: int  # L, number of tokens of the longest prompt
    device_type: str  # "cuda" or "cpu"
    logits_in_chunks: bool = True  # False if all logits are computed at once, as the model's own head does
    shares_prompts: bool = True  # True if a prompt is computed once for all its completions, False if once for each
    rollout_parts: int = 1  # number of parts of a step's prompts that are sampled one after another
    has_environment: bool = False  # True if an environment replies; all episodes are then sampled in one part

    @cached_property
    def microbatch_size(self) -> int:
        return self.config.microbatch_size

    @cached_property
    def row_length(self) -> int:
        """Tokens of a prompt and its completion."""
        return self.prompt_length + self.config.max_completion_length

    @cached_property
    def weight_itemsize(self) -> int:
        """Bytes of a weight; a number of the residual stream takes the same."""
        return self.precision.weights.itemsize

    @cached_property
    def matmul_dtype(self) -> torch.dtype:
        """The precision of the matrix products of forward and backward pass."""
        return self.precision.autocast or self.precision.weights

    @cached_property
    def matmul_itemsize(self) -> int:
        """Bytes of a number in the matrix products."""
        return self.matmul_dtype.itemsize

    @cached_property
    def num_prompts(self) -> int:
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

    @cached_property
    def completion_inputs(self) -> int:
        """Tokens of completions that pass the layers: all but the last of each, which predicts nothing."""
        return self.microbatch_size * (self.config.max_completion_length - 1)

    @cached_property
    def layer_tokens(self) -> int:
        """Tokens of a micro-batch that pass the layers."""
        return self.num_prompts * self.prompt_length + self.completion_inputs

    @cached_property
    def head_tokens(self) -> int:
        """Tokens of a micro-batch that the head predicts."""
        return self.microbatch_size * self.config.max_completion_length

    @cached_property
    def chunk_tokens(self) -> int | None:
        """Tokens that pass the head at a time; None if all tokens pass it at once."""
        shape = self.shape
        chunk = head_chunk_tokens(self.head_tokens, shape.vocabulary, shape.width, self.device_type)
        return chunk if self.logits_in_chunks else None

    @cached_property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of all weights, in the precision of the weights."""
        return formulas.weight_bytes(self.shape.parameters, self.weight_itemsize)

    @cached_property
    def embedding_bytes(self) -> int:
        """Bytes of the output embedding, V x D."""
        return formulas.weight_bytes(self.shape.vocabulary * self.shape.width, self.weight_itemsize)

    @cached_property
    def head_gradient_bytes(self) -> int:
        """Bytes of the output embedding's gradient that are kept until the input embedding's gradient is added to it.

        There are none unless the two embeddings are tied.
        """
        return self.embedding_bytes if self.shape.has_tied_head else 0

    @cached_property
    def head_copy_bytes(self) -> int:
        """Bytes of the half-precision copy of the head that autocast makes."""
        head = self.shape.vocabulary * self.shape.width
        return formulas.weight_bytes(head, self.matmul_itemsize) if self.precision.autocast else 0

    @cached_property
    def layer_copy_bytes(self) -> int:
        """Bytes of the half-precision copies of the layers' linear maps that autocast makes."""
        linear = self.shape.linear_parameters
        return formulas.weight_bytes(linear, self.matmul_itemsize) if self.precision.autocast else 0

    @cached_property
    def layer_activation_bytes(self) -> int:
        """Bytes that one layer keeps for the backward pass, with keys and values for each row that attends to them."""
        copies = 3 if self.precision.autocast else 0
        token_bytes = formulas.layer_token_bytes(self.shape, self.matmul_itemsize, self.weight_itemsize, copies=copies)
        completions = self.microbatch_size * self.row_length * self._key_copies(self.row_length - 1)
        columns = completions + self.num_prompts * self.prompt_length * self._key_copies(self.prompt_length)
        cache = formulas.cache_bytes(self.shape, columns, self.matmul_itemsize) // self.shape.layers
        return self.layer_tokens * token_bytes + cache + self._padding_bytes

    def _key_copies(self, length: int) -> int:
        """Return the number of copies that a row of `length` tokens keeps of each of its keys."""
        heads_per_key = self.shape.query_width // self.shape.key_width
        return key_copies(self.device_type, self.matmul_dtype, heads_per_key) if length > LONGEST_MASKED else 1

    @cached_property
    def _padding_bytes(self) -> int:
        """Bytes of the zero queries that pad long rows, and of their outputs, if the kernel computes a row per call."""
        is_padded = kernel_of_long_rows(self.device_type, self.matmul_dtype) == BY_ROW
        queries = self.microbatch_size * self.prompt_length if is_padded and self.row_length - 1 > LONGEST_MASKED else 0
        return 2 * queries * self.shape.query_width * self.matmul_itemsize

    @cached_property
    def head_activation_bytes(self) -> int:
        """Bytes that the last norm and the head keep for the backward pass."""
        norm_bytes = (4 + self.weight_itemsize) * self.shape.width + 4
        return self.layer_tokens * norm_bytes + self.head_tokens * self.weight_itemsize * self.shape.width

    @cached_property
    def mask_bytes(self) -> int:
        """Bytes of the two attention masks that all layers share: one for the completions, and one for the prompts.

        Only the masks grow with the square of a length. They have a row for each query head that shares a key head.
        Rows longer than `LONGEST_MASKED` have no mask. If such a run also has micro-batches of shorter rows, their
        mask, of at most `LONGEST_MASKED` columns, is covered by the reserve.
        """
        completion_entries = self._mask_entries(self.completion_inputs, self.row_length - 1)
        prompt_entries = self._mask_entries(self.num_prompts * self.prompt_length, self.prompt_length)
        return self._bytes_of_mask(completion_entries + prompt_entries)

    @cached_property
    def prefill_mask_bytes(self) -> int:
        """Bytes of the mask of all prompts of a part of a rollout, without the last token of each."""
        length = self.prompt_length - 1
        return self._bytes_of_mask(self._mask_entries(self.num_rollout_prompts * length, length))

    @cached_property
    def num_rollout_prompts(self) -> int:
        """Prompts of one part of a rollout."""
        return self.config.prompts_per_step // self.rollout_parts

    def _mask_entries(self, queries: int, length: int) -> int:
        return queries * aligned_columns(length) if length <= LONGEST_MASKED else 0

    def _bytes_of_mask(self, entries: int) -> int:
        return self.matmul_itemsize * (self.shape.query_width // self.shape.key_width) * entries


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


def rollout_snapshots(sizes: RunSizes) -> list[BytesByPart]:
    """Return two snapshots of a rollout: the forward pass of the prompts, and a decoding step of all rows of a part."""
    prompt_tokens = sizes.num_rollout_prompts * (sizes.prompt_length - 1)
    # The prompts' cache is transformers'. Under autocast it is float32, like the rotated keys that it stores.
    cache_itemsize = 4 if sizes.precision.autocast else sizes.matmul_itemsize
    prompt_cache_bytes = formulas.cache_bytes(sizes.shape, prompt_tokens, cache_itemsize)
    working_memory = formulas.forward_bytes(sizes.shape, prompt_tokens, sizes.matmul_itemsize, sizes.weight_itemsize)
    prefill = {
        "KV cache": prompt_cache_bytes,
        "autocast cache": sizes.layer_copy_bytes,
        "activations": working_memory + sizes.prefill_mask_bytes,
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
        "autocast cache": 2 * sizes.layer_copy_bytes + sizes.head_copy_bytes,
    }


def logprob_snapshots(sizes: RunSizes) -> list[BytesByPart]:
    """Return two snapshots of computing log-probabilities without gradient: in the layers, and in the head.

    They are computed under the reference, if it is on this device; and under the policy, if a step has several updates
    or a KL is logged that the loss does not contain.
    """
    is_policy_scored = sizes.config.updates_per_step > 1 or (sizes.config.log_kl and sizes.config.beta == 0)
    if not is_policy_scored and not resident_bytes(sizes)["reference"]:
        return [{}]
    layer_copy_bytes = sizes.layer_copy_bytes if is_policy_scored else 0
    shape, itemsize, weight_itemsize = sizes.shape, sizes.matmul_itemsize, sizes.weight_itemsize
    working_memory = formulas.forward_bytes(shape, sizes.layer_tokens, itemsize, weight_itemsize)
    hidden_bytes = formulas.weight_bytes((sizes.layer_tokens + sizes.head_tokens) * shape.width, weight_itemsize)
    logits_bytes = formulas.head_logprobs_bytes(shape, sizes.head_tokens, sizes.chunk_tokens, itemsize)
    in_layers = {"activations": working_memory + sizes.mask_bytes, "autocast cache": layer_copy_bytes}
    copies = layer_copy_bytes + sizes.head_copy_bytes
    return [in_layers, {"head": logits_bytes, "activations": hidden_bytes, "autocast cache": copies}]


def update_snapshots(sizes: RunSizes) -> list[BytesByPart]:
    """Return the snapshots of the first micro-batch of an update, and of a later one, if there is one.

    In a later micro-batch the gradients of the earlier ones are alive as well.
    """
    snapshots = _microbatch_snapshots(sizes, 0)
    if sizes.config.update_batch_size > sizes.microbatch_size:
        snapshots += _microbatch_snapshots(sizes, sizes.gradient_bytes)
    return snapshots


def _microbatch_snapshots(sizes: RunSizes, gradients_before: int) -> list[BytesByPart]:
    """Return five snapshots of a micro-batch: the end of its forward pass, and four of its backward pass.

    Checkpointed layers keep only their input, and are computed again in the backward pass.

    gradients_before: Bytes of the gradients that earlier micro-batches left.
    """
    shape, checkpointing = sizes.shape, sizes.config.gradient_checkpointing
    layer_input_bytes = sizes.layer_tokens * sizes.weight_itemsize * shape.width
    bytes_per_layer = layer_input_bytes if checkpointing else sizes.layer_activation_bytes
    before_head_bytes = shape.layers * bytes_per_layer + sizes.mask_bytes
    in_graph_bytes = before_head_bytes + sizes.head_activation_bytes
    kept_copy_bytes = 0 if checkpointing else sizes.layer_copy_bytes
    # The backward pass of a layer needs what the layer kept, and two gradients of the MLP's width.
    mlp_gradient_bytes = sizes.matmul_itemsize * shape.mlp_width * sizes.layer_tokens
    one_layer_bytes = sizes.layer_activation_bytes + 2 * mlp_gradient_bytes
    all_layers_bytes = before_head_bytes + one_layer_bytes - (0 if checkpointing else sizes.layer_activation_bytes)
    head_tokens, chunk_tokens = sizes.head_tokens, sizes.chunk_tokens
    head_forward_bytes = formulas.head_logprobs_bytes(shape, head_tokens, chunk_tokens, sizes.matmul_itemsize)
    head_backward_bytes = formulas.head_update_bytes(shape, head_tokens, chunk_tokens, sizes.weight_itemsize)
    layer_gradient_bytes = sizes.gradient_bytes if gradients_before else sizes.gradient_bytes - sizes.embedding_bytes
    last_gradient_bytes = _last_head_gradients(sizes, gradients_before)
    return [
        # the end of the forward pass
        _snapshot(gradients_before, in_graph_bytes, sizes.layer_copy_bytes + sizes.head_copy_bytes, head_forward_bytes),
        # the backward pass: in the head, in the last layer, in the first layer, and in the input embedding
        _snapshot(gradients_before, in_graph_bytes, kept_copy_bytes + sizes.head_copy_bytes, head_backward_bytes),
        _snapshot(gradients_before, all_layers_bytes, kept_copy_bytes, sizes.head_gradient_bytes),
        _snapshot(layer_gradient_bytes, one_layer_bytes, 0, sizes.head_gradient_bytes),
        _snapshot(sizes.gradient_bytes, 0, 0, last_gradient_bytes),
    ]


def _last_head_gradients(sizes: RunSizes, gradients_before: int) -> int:
    """Return the bytes of the head's gradients at the end of a backward pass, in addition to `gradients_before`.

    For tied embeddings, the input embedding's gradient is added to the head's. With chunks it is always added in place;
    without, only if `adds_head_gradient_in_place`. If earlier micro-batches left gradients, the new gradient is
    alive in addition to theirs, and a sum that is not made in place is alive as well.
    """
    if not gradients_before:
        return sizes.head_gradient_bytes
    adds_in_place = sizes.chunk_tokens is not None or adds_head_gradient_in_place(
        sizes.shape.vocabulary, sizes.precision.autocast is not None
    )
    has_separate_sum = sizes.shape.has_tied_head and not adds_in_place
    new_gradients = 2 if has_separate_sum else 1
    return sizes.head_gradient_bytes + new_gradients * sizes.embedding_bytes


def _snapshot(gradients: int, activations: int, autocast_cache: int, head: int) -> BytesByPart:
    return {"gradients": gradients, "activations": activations, "autocast cache": autocast_cache, "head": head}


def optimizer_snapshots(sizes: RunSizes) -> list[BytesByPart]:
    r"""Compute the snapshot of an optimizer step, with the optimizer's working memory for n weights.

    M = 28 \min(n, 2^{22}) \tag{8.11}

    This holds for 8-bit AdamW, which processes the weights in pieces of at most 2^22 numbers and needs seven float32
    tensors of the size of a piece. torch's fused AdamW needs no working memory.
    """
    eight_bit = sizes.precision.optimizer == "adamw8bit"
    working_memory = 28 * min(sum(sizes.shape.parameter_sizes), PIECE_SIZE) if eight_bit else 0  # scalar (8.11)
    return [{"gradients": sizes.gradient_bytes, "Adam at work": working_memory}]


# The function that returns the snapshots of each phase, by the name of the phase.
SNAPSHOTS_BY_PHASE = {
    "rollout": rollout_snapshots,
    "logprobs": logprob_snapshots,
    "update": update_snapshots,
    "optimizer": optimizer_snapshots,
}
