r"""The bytes of each part of a training step on the device: one small formula each.

Each formula counts the tensors that this package allocates, and the tests compare it with the tensors of real steps. In
the formulas, e is the number of bytes of one number: 2 in bf16 and fp16, 4 in float32.
"""

from grpo_lab.models.shapes import ModelShape
from grpo_lab.trainer.optim.adamw_8bit import BLOCK, MIN_QUANTISED_SIZE


def weight_bytes(parameters: int, e: int) -> int:
    r"""Bytes of the weights; also of their gradients, which have the same precision, and of each copy of the model.

    M = n e \tag{8.9}
    """
    return parameters * e  # scalar (8.9)


def adam_8bit_bytes(size: int) -> int:
    r"""Bytes of Adam's two 8-bit moments for a parameter of n numbers: n codes each, and a float32 scale per 256 codes.

    M = 2 \left( n + \frac{4 n}{256} \right) \tag{8.10}

    A parameter of fewer than 4096 numbers, or of a size that is not a multiple of 256, is not quantised: its two
    moments take 8 bytes per number.

    Source: Dettmers et al. (2022), "8-bit optimizers via block-wise quantization", section 2; blocks as in torchao.
    """
    if size < MIN_QUANTISED_SIZE or size % BLOCK:
        return 8 * size
    return 2 * (size + 4 * size // BLOCK)  # scalar (8.10)


def cache_bytes(shape: ModelShape, tokens: int, e: int) -> int:
    r"""Bytes of the KV cache: a key and a value of head width D_h for each token, layer and key head.

    M = 2 \cdot \text{layers} \cdot \text{key heads} \cdot D_h \cdot e \cdot N \tag{8.20}

    N is `tokens`, and e the bytes of one number; `shape.layers` counts the layers, and `shape.key_width` is the width
    of all key heads together. For Qwen2-0.5B in half precision this is 12 KiB per token. The result is an exact int.
    """
    return 2 * shape.layers * shape.key_width * e * tokens  # scalar (8.20)


def head_logprobs_bytes(shape: ModelShape, tokens: int, chunk: int | None, e: int) -> int:
    r"""Bytes of log-probabilities without gradient: logits and log-softmax of a chunk of c tokens, both in float32.

    M = 2 \cdot 4 \, c V \tag{8.17}

    Without chunks, these two are made of all N tokens, in addition to the logits in the precision of
    the products: (8 + e) N V.
    """
    if chunk is None:
        return (8 + e) * tokens * shape.vocabulary
    return 2 * 4 * chunk * shape.vocabulary  # scalar (8.17)


def head_update_bytes(shape: ModelShape, tokens: int, chunk: int | None, e: int) -> int:
    r"""Bytes of the head's backward pass: the embedding's gradient, summed in float32, and the logits of a chunk.

    M = 4 V D + \max(2 \cdot 4 \, c V,\; e V D) \tag{8.18}

    The output embedding is V x D. The last term is the copy of its gradient in the precision of the weights, which is
    made after all chunks; float32 weights need no copy. Without chunks, four float32 tensors of the size of all N
    tokens' logits are alive: 16 N V.
    """
    V, D = shape.vocabulary, shape.width
    if chunk is None:
        return 4 * 4 * tokens * V
    rounded = e * V * D if e < 4 else 0
    return 4 * V * D + max(2 * 4 * chunk * V, rounded)  # scalar (8.18)


def layer_token_bytes(shape: ModelShape, e: int, r: int, copies: int = 0) -> int:
    r"""Bytes that one layer keeps per token for the backward pass, without keys and values.

    a_{\mathrm{norm}} = (4 + r) D + 4 \tag{8.12}
    a_{\mathrm{attention}} = 3 e \, (\text{heads} \cdot D_h) + 4 \, \text{heads} \tag{8.13}
    a_{\mathrm{MLP}} = 4 e F \tag{8.14}
    a = 2 (a_{\mathrm{norm}} + e D) + a_{\mathrm{attention}} + a_{\mathrm{MLP}} + 3 e D [\text{autocast}] \tag{8.15}

    A norm keeps its input in float32, the normalised input in the residual stream's precision of r bytes per number,
    and one number; its output, e D, is the input of the linear maps that follow. Attention keeps its queries, its
    output twice (row by row, and in the order of the sequence), and the logarithm of its normaliser, but no S x S
    matrix. The MLP keeps gate, activation, up and their product. Under autocast, each of the five linear maps after the
    norms keeps its own copy of its input, which makes three more.

    Args:
        shape: The sizes of the model.
        e: Bytes of a number in the matrix products.
        r: Bytes of a number in the residual stream.
        copies: Number of additional copies of the norms' outputs: 3 under autocast, else 0.
    """
    D = shape.width
    norm = (4 + r) * D + 4  # scalar (8.12)
    attention = 3 * e * shape.query_width + 4 * shape.heads  # scalar (8.13)
    mlp = 4 * e * shape.mlp_width  # scalar (8.14)
    return 2 * (norm + e * D) + attention + mlp + copies * e * D  # scalar (8.15)


def forward_bytes(shape: ModelShape, tokens: int, e: int, r: int) -> int:
    r"""Bytes of the activations of a forward pass without gradient, at its peak, which is in the MLP of a layer.

    M = (3 e F + 4 r D) N \tag{8.16}

    The MLP has three tensors of its width F: activation, up and their product. In addition there are four tensors
    of the width D: the embeddings, the layer's input, the residual and the normalised residual.
    """
    return (3 * e * shape.mlp_width + 4 * r * shape.width) * tokens  # scalar (8.16)
