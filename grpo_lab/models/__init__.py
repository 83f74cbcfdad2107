"""Models: finding, fetching and loading them, their adapters, shapes, and the check of a model before it is trained.

`loading.py` loads a model on a device, from the files that `folders.py` finds. `packaged.py` fetches the two models
that come in Python packages, and `gguf_file.py` converts them. `adapters.py` has LoRA and the reference of the KL term,
`selfcheck.py` compares sampler and trainer before training, and `shapes.py` has the sizes that determine a step's cost.
"""

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
