r"""The bytes of each part of a training step on the device: one small formula each.

Each formula counts the tensors that this package really keeps, and the tests hold it against those of real steps. An e
is the number of bytes of a number: 2 in bf16 and fp16, 4 in float32.
"""

from grpo_lab.models.shapes import ModelShape
from grpo_lab.trainer.optim_8bit import BLOCK, MIN_QUANTISED


def weight_bytes(parameters: int, e: int) -> int:
    r"""The weights; the gradients, of the same precision; and each copy of the model.

    M = n e \tag{8.9}
    """
    return parameters * e  # scalar (8.9)


def adam_8bit_bytes(size: int) -> int:
    r"""Adam's two moments of a parameter of n numbers in 8 bits: a code each, a float32 scale per block of 256.

    M = 2 \left( n + \frac{4 n}{256} \right) \tag{8.10}

    A parameter of fewer than 4096 numbers, or not a multiple of 256, is not quantised: its moments take 8 bytes a
    number.

    Source: Dettmers et al. (2022), "8-bit optimizers via block-wise quantization", section 2; blocks as in torchao.
    """
    if size < MIN_QUANTISED or size % BLOCK:
        return 8 * size
    return 2 * (size + 4 * size // BLOCK)  # scalar (8.10)


def cache_bytes(shape: ModelShape, tokens: int, e: int) -> int:
    r"""A key and a value for each token, layer and key head, each as wide as a head, D_h.

    M = 2 \cdot \text{layers} \cdot \text{key heads} \cdot D_h \cdot e \cdot N \tag{8.20}

    N is `tokens`, and e the bytes of one number; `shape.layers` counts the layers, and `shape.key_width` is the width
    of all key heads together. 12 KiB per token for Qwen2-0.5B in half precision. The result is an int, exact however
    large.
    """
    return 2 * shape.layers * shape.key_width * e * tokens  # scalar (8.20)


def head_logprobs_bytes(shape: ModelShape, tokens: int, chunk: int | None, e: int) -> int:
    r"""Log-probabilities without gradient: the logits, and their logarithm after the softmax, of c tokens in float32.

    M = 2 \cdot 4 \, c V \tag{8.17}

    Without chunks the logits stand beside them, all N of them in the precision of the products: (8 + e) N V.
    """
    if chunk is None:
        return (8 + e) * tokens * shape.vocabulary
    return 2 * 4 * chunk * shape.vocabulary  # scalar (8.17)


def head_update_bytes(shape: ModelShape, tokens: int, chunk: int | None, e: int) -> int:
    r"""The gradient of log-probabilities: the embedding's adds up in float32, beside the logits of a chunk.

    M = 4 V D + \max(2 \cdot 4 \, c V,\; e V D) \tag{8.18}

    The output embedding is V x D. The last term is its gradient's copy in the weights' precision, made when all chunks
    are done; in float32 it needs none. Without chunks four float32 tensors of all N logits are alive: 16 N V.
    """
    V, D = shape.vocabulary, shape.width
    if chunk is None:
        return 4 * 4 * tokens * V
    rounded = e * V * D if e < 4 else 0
    return 4 * V * D + max(2 * 4 * chunk * V, rounded)  # scalar (8.18)


def layer_token_bytes(shape: ModelShape, e: int, r: int, copies: int = 0) -> int:
    r"""Bytes that one layer keeps of one token for the backward pass, beside keys and values.

    a_{\mathrm{norm}} = (4 + r) D + 4 \tag{8.12}
    a_{\mathrm{attention}} = 3 e \, (\text{heads} \cdot D_h) + 4 \, \text{heads} \tag{8.13}
    a_{\mathrm{MLP}} = 4 e F \tag{8.14}
    a = 2 (a_{\mathrm{norm}} + e D) + a_{\mathrm{attention}} + a_{\mathrm{MLP}} + 3 e D [\text{autocast}] \tag{8.15}

    A norm keeps its input in float32, the normalised input in the precision r of the residual stream, and a number; its
    output e D is the input of the linear maps that follow. Attention keeps its queries, its output (row by row, and in
    the order of the sequence), and the logarithm of its normaliser: no S x S matrix. The MLP keeps gate, activation, up
    and their product. Under autocast each of the five linear maps after the norms has an input of its own: three more.
    """
    D = shape.width
    norm = (4 + r) * D + 4  # scalar (8.12)
    attention = 3 * e * shape.query_width + 4 * shape.heads  # scalar (8.13)
    mlp = 4 * e * shape.mlp_width  # scalar (8.14)
    return 2 * (norm + e * D) + attention + mlp + copies * e * D  # scalar (8.15)


def forward_bytes(shape: ModelShape, tokens: int, e: int, r: int) -> int:
    r"""The activations of a forward pass without gradient, at their most in the MLP of a layer.

    M = (3 e F + 4 r D) N \tag{8.16}

    Activation, up and product; and four times the width: embeddings, the layer's input, residual, normalised residual.
    """
    return (3 * e * shape.mlp_width + 4 * r * shape.width) * tokens  # scalar (8.16)
