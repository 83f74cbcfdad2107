"""Models: finding and loading them, their device, adapters, shapes, and the check of a model before its first use."""

from grpo_lab.config.precision import origin_of, set_origin
from grpo_lab.models.adapters import add_lora
from grpo_lab.models.device import (
    describe_device,
    keep_freed_memory_unless_tiny,
    one_thread_if_tiny,
    pick_device,
)
from grpo_lab.models.folders import QWEN2
from grpo_lab.models.frozen import disable_dropout, frozen_copy
from grpo_lab.models.loading import load_policy
