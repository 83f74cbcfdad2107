"""The origin of a model: what is stored on the model, and what a copy has."""

from copy import deepcopy

import pytest
from torch import nn

from grpo_lab.base.origin import Origin, origin_of, set_origin


def test_the_origin_of_a_model_is_changed_field_by_field_and_copied_with_it():
    model = nn.Linear(1, 1)
    assert origin_of(model) == Origin(precision=None, name=None, merged_adapter=None)
    set_origin(model, precision="fp32", name="Qwen/Qwen2-0.5B")
    set_origin(model, merged_adapter="adapter")
    assert origin_of(model) == origin_of(deepcopy(model)) == Origin("fp32", "Qwen/Qwen2-0.5B", "adapter")
    with pytest.raises(TypeError, match="mode"):
        set_origin(model, mode="fp32")
