"""On a card: what torch says of its flash kernel is what it does."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from grpo_lab.models.shapes import random_policy
from grpo_lab.rollout.attention import has_flash
from grpo_lab.rollout.ways import head_width

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_the_kernel_is_there_where_torch_says_so(dtype):
    model = random_policy("small").cuda()
    config = model.config
    query, key = (
        torch.randn(2, heads, 32, head_width(config), device="cuda", dtype=dtype, requires_grad=True)
        for heads in (config.num_attention_heads, config.num_key_value_heads)
    )
    try:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=True)
        works = True
    except RuntimeError:  # no other kernel was allowed
        works = False
    assert has_flash(model, dtype) is works
