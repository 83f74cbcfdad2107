"""The sizes of a model, read from its configuration, are the numbers worked out by hand."""

import pytest
from transformers import GPT2Config, LlamaConfig, Qwen2Config, T5Config

from grpo_lab.base.checks import InputError
from grpo_lab.models.shapes import SHAPES, shape_config, shape_of


def test_the_shape_of_qwen2():
    shape = shape_of(shape_config("qwen2"))
    layer = (896 * 896 + 896) + 2 * (896 * 128 + 128) + 896 * 896 + 3 * 896 * 4864
    assert shape.parameters == 494_032_768 == 151_936 * 896 + 24 * (layer + 2 * 896) + 896
    assert shape.linear_parameters == 24 * layer
    assert (shape.layers, shape.heads, shape.width) == (24, 14, 896)
    assert (shape.query_width, shape.key_width, shape.mlp_width) == (896, 128, 4864)
    assert shape.vocabulary == 151_936
    assert shape.has_tied_head


def test_the_shape_of_smollm2_has_no_biases():
    config = shape_config("smollm2")
    shape = shape_of(config)
    layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536
    assert type(config) is LlamaConfig
    assert shape.linear_parameters == 30 * layer
    assert shape.parameters == 134_515_008 == 49_152 * 576 + 30 * (layer + 2 * 576) + 576
    assert (shape.query_width, shape.key_width) == (576, 192)


def test_sizes_of_the_small_shape_are_all_different():
    sizes = {name: size for name, size in SHAPES["small"].items() if type(size) is int}
    assert len(sizes) == 7
    assert len({*sizes.values()}) == len(sizes)
    assert type(shape_config("small")) is Qwen2Config


def test_other_shapes_are_refused_by_name():
    with pytest.raises(InputError, match="shape is 'gpt'; expected one of " + ", ".join(map(repr, SHAPES))):
        shape_config("gpt")
    for config in (GPT2Config(), T5Config()):
        with pytest.raises(InputError, match="model_config is not of Qwen2's kind: "):
            shape_of(config)
