"""What the work comes to on paper: weights, bytes read, and floating-point operations of a model of Qwen2's family.

An operation is one multiplication or one addition in a matrix product, so a product of (a, b) and (b, c) has 2abc.
Everything else (norms, softmax, activations) is left out, as is usual: at these sizes it is under one per cent.
"""

from dataclasses import dataclass

from transformers import Qwen2Config

from grpo_lab.memory.parts import cache_bytes, weight_bytes
from grpo_lab.models.shapes import ModelShape, shape_of


def layer_matrices(shape: ModelShape) -> int:
    """Numbers in the matrices of all layers: queries and output, keys and values, gate, up and down."""
    return shape.layers * shape.width * (2 * shape.queries + 2 * shape.keys + 3 * shape.inner)


def head_matrix(shape: ModelShape) -> int:
    return shape.vocabulary * shape.width


def bytes_read(config: Qwen2Config, rows: int, prompt: int, response: int, bytes_per_number: int) -> int:
    """The least that sampling `rows` responses has to read: at each of `response` tokens all weights once, and the keys
    and values of every token before it, those of its own prompt included. Reading the prompts themselves is left out.
    """
    shape = shape_of(config)
    numbers = shape.parameters - (0 if shape.tied else head_matrix(shape))  # of the input embedding only a row is read
    tokens_before = rows * sum(prompt + step for step in range(response))
    return response * weight_bytes(numbers, bytes_per_number) + cache_bytes(shape, tokens_before, bytes_per_number)


@dataclass(frozen=True)
class Work:
    """What one update runs through the model, forward.

    layer_tokens: through all layers. head_tokens: through the head. pairs: of a query and a key that attention forms
    in each layer and head, those that the causal mask hides afterwards included.
    """

    layer_tokens: int
    head_tokens: int
    pairs: int


def work(rows: int, num_generations: int, prompt: int, completion: int, share_prompts: bool) -> Work:
    """An update from prompts of one length with G completions of one length each, `rows` in all.

    With shared prompts each prompt runs once, and of a completion all tokens but the last; otherwise each row whole.
    """
    if not share_prompts:
        length = prompt + completion
        return Work(rows * length, rows * completion, rows * length**2)
    prompts = rows // num_generations
    pairs = prompts * prompt**2 + rows * (completion - 1) * (prompt + completion - 1)
    return Work(prompts * prompt + rows * (completion - 1), rows * completion, pairs)


def layer_flops(shape: ModelShape, of: Work) -> int:
    """Forward, through the layers: 2 a weight and token, and 4 a pair and number of a query (scores, then values)."""
    return 2 * layer_matrices(shape) * of.layer_tokens + 4 * shape.layers * shape.queries * of.pairs


def head_flops(shape: ModelShape, of: Work) -> int:
    return 2 * head_matrix(shape) * of.head_tokens


def training_flops(shape: ModelShape, of: Work) -> int:
    """Forward and backward, which is twice forward: 6 N a token, plus attention. Nothing that is computed twice."""
    return 3 * (layer_flops(shape, of) + head_flops(shape, of))


def recomputed_flops(shape: ModelShape, of: Work, checkpointing: bool, chunked_head: bool) -> int:
    """What backward computes a second time to save memory; it is no progress, so it is counted apart.

    Of each layer everything but the last product, whose result no backward pass needs.
    """
    last = 2 * shape.layers * shape.inner * shape.width * of.layer_tokens
    return checkpointing * (layer_flops(shape, of) - last) + chunked_head * head_flops(shape, of)
