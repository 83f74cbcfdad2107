"""Load a policy: choose folder, device and precision, and print every choice."""

from grpo_lab.base.origin import Origin, origin_of, set_origin
from grpo_lab.base.renamed import renamed_in_module
from grpo_lab.config.precision import PRECISIONS, has_native_bf16, pick_precision
from grpo_lab.models.adapters import add_lora
from grpo_lab.models.folders import QWEN2
from grpo_lab.models.frozen import frozen_copy, silence_dropout
from grpo_lab.models.loading import (
    describe_device,
    keep_freed_memory_if_large,
    load_policy,
    one_thread_if_tiny,
    pick_device,
)

__getattr__ = renamed_in_module(__name__, {"one_thread_if_small": "one_thread_if_tiny"})
