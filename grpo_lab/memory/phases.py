"""The bytes that are alive in the four phases of a step: rollout, log-probabilities, update, optimizer step.

A phase is a list of moments in the order of time, each of them from the name of a part to its bytes. The largest moment
is what the phase needs.
"""

from dataclasses import dataclass
from functools import cached_property

import torch

from grpo_lab.config import GRPOConfig
from grpo_lab.config.precision import Precision
from grpo_lab.logprobs import LARGE_VOCABULARY
from grpo_lab.memory import parts
from grpo_lab.models.shapes import ModelShape
from grpo_lab.rollout.decoding.static import CAPTURED_LOGITS, fixed_columns
from grpo_lab.rollout.forward.attention import aligned_columns
from grpo_lab.rollout.forward.long_rows import BY_ROW, LONGEST_MASKED, kernel_of_long_rows, key_copies
from grpo_lab.rollout.forward.model_logprobs import head_chunk
from grpo_lab.trainer.optim_8bit import PIECE_SIZE

Parts = dict[str, int]
# float32 tensors of the size of the logits: they, their logarithm after the softmax, two of probabilities
SAMPLING_TENSORS = 4


@dataclass
class PlannedRun:
    """A run, a model's shape and a device, and the sizes that follow from them at once."""

    shape: ModelShape
    config: GRPOConfig
    mode: Precision
    prompt_length: int
    device_type: str
    chunked: bool = True  # the head; else all logits stand at once, as in code that calls the model for them
    shared: bool = True  # a prompt is computed once for the rows that answer it; else in each of them
    rollout_parts: int = 1  # into which the prompts of a step are cut, to be answered one after the other

    @cached_property
    def rows(self) -> int:
        """Rows of a micro-batch of an update."""
        return self.config.rows_at_once

    @cached_property
    def length(self) -> int:
        """Tokens of a prompt and its completion."""
        return self.prompt_length + self.config.max_completion_length

    @cached_property
    def weight_itemsize(self) -> int:
        """Bytes of a weight, and of a number of the residual stream."""
        return self.mode.weights.itemsize

    @cached_property
    def matmul_dtype(self) -> torch.dtype:
        """The precision of the matrix products of forward and backward pass."""
        return self.mode.autocast or self.mode.weights

    @cached_property
    def matmul_itemsize(self) -> int:
        """Bytes of a number in the matrix products."""
        return self.matmul_dtype.itemsize

    @cached_property
    def num_prompts(self) -> int:
        """The most prompts that a micro-batch has; rows of a prompt stand together (trainer/experience_logprobs.py)."""
        config = self.config
        rows = self.rows
        group = self.config.num_generations
        if not self.shared:
            return rows
        whole_groups = config.update_batch_size == config.generation_batch_size
        if whole_groups and (rows % group == 0 or group % rows == 0):
            return max(rows // group, 1)
        return min(config.prompts_per_step, rows)

    @cached_property
    def completion_inputs(self) -> int:
        """Tokens of completions that pass the layers: the last of each predicts nothing."""
        return self.rows * (self.config.max_completion_length - 1)

    @cached_property
    def tokens(self) -> int:
        """Tokens of a micro-batch that pass the layers."""
        return self.num_prompts * self.prompt_length + self.completion_inputs

    @cached_property
    def completion_tokens(self) -> int:
        """Tokens of a micro-batch that the head predicts."""
        return self.rows * self.config.max_completion_length

    @cached_property
    def chunk(self) -> int | None:
        """Tokens that pass the head at a time; None for all of them."""
        shape = self.shape
        chunk = head_chunk(self.completion_tokens, shape.vocabulary, shape.width, self.device_type)
        return chunk if self.chunked else None

    @cached_property
    def gradient_bytes(self) -> int:
        """The gradients of all weights, in the precision of the weights."""
        return parts.weight_bytes(self.shape.parameters, self.weight_itemsize)

    @cached_property
    def embedding_bytes(self) -> int:
        """The output embedding, V x D."""
        return parts.weight_bytes(self.shape.vocabulary * self.shape.width, self.weight_itemsize)

    @cached_property
    def head_gradient_bytes(self) -> int:
        """The output embedding's gradient, which waits for that of the input's, where the two are one."""
        return self.embedding_bytes if self.shape.has_tied_head else 0

    @cached_property
    def head_copy_bytes(self) -> int:
        """The copy of the head in half precision, which autocast makes."""
        head = self.shape.vocabulary * self.shape.width
        return parts.weight_bytes(head, self.matmul_itemsize) if self.mode.autocast else 0

    @cached_property
    def layer_copy_bytes(self) -> int:
        """The copies of the layers' linear maps in half precision, which autocast makes."""
        return parts.weight_bytes(self.shape.linear_parameters, self.matmul_itemsize) if self.mode.autocast else 0

    @cached_property
    def layer_activation_bytes(self) -> int:
        """What one layer keeps for the backward pass, with keys and values for each row that attends to them."""
        copies = 3 if self.mode.autocast else 0
        token_bytes = parts.layer_token_bytes(self.shape, self.matmul_itemsize, self.weight_itemsize, copies=copies)
        completions = self.rows * self.length * self._key_copies(self.length - 1)
        columns = completions + self.num_prompts * self.prompt_length * self._key_copies(self.prompt_length)
        cache = parts.cache_bytes(self.shape, columns, self.matmul_itemsize) // self.shape.layers
        return self.tokens * token_bytes + cache + self._padding_bytes

    def _key_copies(self, length: int) -> int:
        """The number of times that a row of so many tokens keeps each of its keys."""
        heads_per_key = self.shape.query_width // self.shape.key_width
        return key_copies(self.device_type, self.matmul_dtype, heads_per_key) if length > LONGEST_MASKED else 1

    @cached_property
    def _padding_bytes(self) -> int:
        """Zeros before the queries of long rows, with their outputs, where each row is a call."""
        by_row = kernel_of_long_rows(self.device_type, self.matmul_dtype) == BY_ROW
        queries = self.rows * self.prompt_length if by_row and self.length - 1 > LONGEST_MASKED else 0
        return 2 * queries * self.shape.query_width * self.matmul_itemsize

    @cached_property
    def head_activation_bytes(self) -> int:
        """What the last norm and the head keep for the backward pass."""
        norm_bytes = (4 + self.weight_itemsize) * self.shape.width + 4
        return self.tokens * norm_bytes + self.completion_tokens * self.weight_itemsize * self.shape.width

    @cached_property
    def mask_bytes(self) -> int:
        """The two masks that all layers share: of the completions, each with its prompt, and of the prompts.

        They alone grow with the square of a length; the query heads of a key head stand in line. Long rows have none;
        a micro-batch of shorter ones in the same run has one of at most `LONGEST_MASKED` columns, within the reserve.
        """
        completions = self._cells(self.completion_inputs, self.length - 1)
        return self._bytes_of_cells(
            completions + self._cells(self.num_prompts * self.prompt_length, self.prompt_length)
        )

    @cached_property
    def prefill_mask_bytes(self) -> int:
        """The mask of a rollout's prompts, all of them at once, without the last token of each."""
        length = self.prompt_length - 1
        return self._bytes_of_cells(self._cells(self.num_rollout_prompts * length, length))

    @cached_property
    def num_rollout_prompts(self) -> int:
        """Prompts of one part of a rollout."""
        return self.config.prompts_per_step // self.rollout_parts

    def _cells(self, queries: int, length: int) -> int:
        return queries * aligned_columns(length) if length <= LONGEST_MASKED else 0

    def _bytes_of_cells(self, cells: int) -> int:
        return self.matmul_itemsize * (self.shape.query_width // self.shape.key_width) * cells


def resident(run: PlannedRun) -> Parts:
    """The bytes that stay for the whole run. Adam's moments are as precise as the weights, or have 8 bits."""
    weights = parts.weight_bytes(run.shape.parameters, run.weight_itemsize)
    eight_bit = run.mode.optimizer == "adamw8bit"
    moments = sum(map(parts.adam_8bit_bytes, run.shape.parameter_sizes)) if eight_bit else 2 * weights
    reference_device = run.config.ref_model_device
    has_reference = run.config.needs_reference and (
        reference_device is None or reference_device.split(":")[0] == run.device_type
    )
    return {"weights": weights, "Adam's moments": moments, "reference": weights if has_reference else 0}


def rollout(run: PlannedRun) -> list[Parts]:
    """The prompts; then a token step for all rows, in a cache that does not move, captured on a GPU."""
    prompt_tokens = run.num_rollout_prompts * (run.prompt_length - 1)
    # As transformers keeps a cache: where autocast is on, float32 like the keys that come out of their rotation.
    prompt_cache = parts.cache_bytes(run.shape, prompt_tokens, 4 if run.mode.autocast else run.matmul_itemsize)
    working_memory = parts.forward_bytes(run.shape, prompt_tokens, run.matmul_itemsize, run.weight_itemsize)
    prefill = {
        "KV cache": prompt_cache,
        "autocast cache": run.layer_copy_bytes,
        "activations": working_memory + run.prefill_mask_bytes,
    }
    return [prefill, _token_step(run, prompt_cache)]


def _token_step(run: PlannedRun, prompt_cache: int) -> Parts:
    """A step of decoding; the cache of the prompts, of so many bytes, is still there beside the cache that it fills."""
    rollout_rows = run.config.generation_batch_size
    rows = rollout_rows // run.rollout_parts
    if run.device_type == "cuda":
        columns = fixed_columns(run.prompt_length, run.config.max_completion_length)
        logits_per_row = CAPTURED_LOGITS
    else:
        columns, logits_per_row = run.length, SAMPLING_TENSORS
    noise_rows = rollout_rows if run.rollout_parts > 1 else 0  # a part draws the noise of all rows
    return {
        "KV cache": prompt_cache + parts.cache_bytes(run.shape, rows * columns, run.matmul_itemsize),
        "sampling": 4 * (logits_per_row * rows + noise_rows) * run.shape.vocabulary,
        # Until the rollout ends, autocast keeps the copies that it made for the prompts.
        "autocast cache": 2 * run.layer_copy_bytes + run.head_copy_bytes,
    }


def logprobs(run: PlannedRun) -> list[Parts]:
    """Log-probabilities without gradient: of the reference, or of the policy before several updates or for a KL."""
    of_policy = run.config.updates_per_step > 1 or (run.config.log_kl and run.config.beta == 0)
    if not of_policy and not resident(run)["reference"]:
        return [{}]
    copies = run.layer_copy_bytes if of_policy else 0
    working_memory = parts.forward_bytes(run.shape, run.tokens, run.matmul_itemsize, run.weight_itemsize)
    hidden = parts.weight_bytes((run.tokens + run.completion_tokens) * run.shape.width, run.weight_itemsize)
    logits = parts.head_logprobs_bytes(run.shape, run.completion_tokens, run.chunk, run.matmul_itemsize)
    layers = {"activations": working_memory + run.mask_bytes, "autocast cache": copies}
    return [layers, {"head": logits, "activations": hidden, "autocast cache": copies + run.head_copy_bytes}]


def update(run: PlannedRun) -> list[Parts]:
    """Forward and backward of the first micro-batch, and of another, to which those before it leave gradients."""
    several = run.config.update_batch_size > run.rows
    return _micro_batch(run, 0) + (_micro_batch(run, run.gradient_bytes) if several else [])


def _micro_batch(run: PlannedRun, gradients_before: int) -> list[Parts]:
    """Five moments of a micro-batch: the end of its forward pass, then four of its backward pass.

    Those are in the head, in the last layer, in the first layer, and at the end, in the input embedding. Layers that
    are checkpointed keep their input alone, and are computed again in the backward pass.

    gradients_before: bytes of the gradients that earlier micro-batches left.
    """
    checkpointing = run.config.gradient_checkpointing
    layer_input = run.tokens * run.weight_itemsize * run.shape.width
    bytes_per_layer = layer_input if checkpointing else run.layer_activation_bytes
    before_head = run.shape.layers * bytes_per_layer + run.mask_bytes
    in_graph = before_head + run.head_activation_bytes
    layer_copies = 0 if checkpointing else run.layer_copy_bytes
    # Beside all that a layer keeps, its backward pass has the gradients of product, activation and up in the MLP.
    one_layer = run.layer_activation_bytes + 2 * run.matmul_itemsize * run.shape.mlp_width * run.tokens
    all_layers = before_head + one_layer - (0 if checkpointing else run.layer_activation_bytes)
    head_forward = parts.head_logprobs_bytes(run.shape, run.completion_tokens, run.chunk, run.matmul_itemsize)
    head_backward = parts.head_update_bytes(run.shape, run.completion_tokens, run.chunk, run.weight_itemsize)
    layer_gradients = run.gradient_bytes if gradients_before else run.gradient_bytes - run.embedding_bytes
    last_gradients = _last_head_gradients(run, gradients_before)
    return [
        _moment(gradients_before, in_graph, run.layer_copy_bytes + run.head_copy_bytes, head_forward),
        _moment(gradients_before, in_graph, layer_copies + run.head_copy_bytes, head_backward),
        _moment(gradients_before, all_layers, layer_copies, run.head_gradient_bytes),
        _moment(layer_gradients, one_layer, 0, run.head_gradient_bytes),
        _moment(run.gradient_bytes, 0, 0, last_gradients),
    ]


def _last_head_gradients(run: PlannedRun, gradients_before: int) -> int:
    """Bytes of the head's gradient at the end of a backward pass, where that of the input embedding is added to it.

    The addition is in place. If earlier micro-batches left gradients, the new one stands beside theirs, and, if the
    plain head made its own, beside a sum.
    """
    is_plain = run.chunk is None and (run.shape.vocabulary <= LARGE_VOCABULARY or run.mode.autocast is not None)
    sums = (run.shape.has_tied_head and is_plain) + 1 if gradients_before else 0
    return run.head_gradient_bytes + sums * run.embedding_bytes


def _moment(gradients: int, activations: int, autocast_cache: int, head: int) -> Parts:
    return {"gradients": gradients, "activations": activations, "autocast cache": autocast_cache, "head": head}


def optimizer_step(run: PlannedRun) -> list[Parts]:
    r"""The working memory of the optimizer, for a piece of the weights, of n numbers in all.

    M = 28 \min(n, 2^{22}) \tag{8.11}

    That is AdamW with 8 bits, which works in float32 and on pieces: seven float32 tensors. torch's AdamW, fused, needs
    nothing.
    """
    eight_bit = run.mode.optimizer == "adamw8bit"
    working_memory = 28 * min(sum(run.shape.parameter_sizes), PIECE_SIZE) if eight_bit else 0  # scalar (8.11)
    return [{"gradients": run.gradient_bytes, "Adam at work": working_memory}]


PHASES = {"rollout": rollout, "logprobs": logprobs, "update": update, "optimizer": optimizer_step}
