"""Data and settings of the run that `torchrun` makes in two processes and our own loop in one process."""

from tests.support.small_policy import letter_reward

ROWS = [{"prompt": [{"role": "user", "content": f"{n}+1=?"}], "answer": str(n + 1)} for n in range(4)]
FUNCTIONS = [letter_reward]
CONFIG = {
    "max_steps": 3, "num_iterations": 2, "beta": 0.1, "loss_type": "dapo", "weight_decay": 0.1, "max_grad_norm": 0.5,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
}  # fmt: skip
LORA = {"lora_r": 2, "lora_alpha": 6, "lora_dropout": 0.0, "lora_target_modules": ["q_proj", "down_proj"]}
ENGINE_ARGUMENTS = {
    "DDP": {"fsdp": False, "lora": None},
    "FSDP2": {"fsdp": True, "lora": None},
    "LoRA": {"fsdp": False, "lora": LORA},
    "FSDP2 and LoRA": {"fsdp": True, "lora": LORA},
}
