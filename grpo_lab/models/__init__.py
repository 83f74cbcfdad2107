"""Models: finding and loading them, their device, adapters, shapes, and the check of a model before its first use."""

from grpo_lab.config.precision import origin_of, set_origin
from grpo_lab.models.adapters import add_lora, frozen_copy
from grpo_lab.models.folders import QWEN2
from grpo_lab.models.loading import (
    describe_device,
    keep_freed_memory_unless_tiny,
    load_policy,
    one_thread_if_tiny,
    pick_device,
)
from grpo_lab.models.selfcheck import disable_dropout
