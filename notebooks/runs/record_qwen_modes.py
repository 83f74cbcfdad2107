"""Record in qwen_modes.json the seconds and the memory of a step of a real Qwen in each mode, and the weights' move.

    python notebooks/runs/record_qwen_modes.py                 three steps in each mode, each in a process of its own
    python notebooks/runs/record_qwen_modes.py --device cuda   the same on a GPU, into qwen_modes_gpu.json

64 answers of up to 12 tokens to sums of three numbers, as in `sums` of record_qwen.py. "reference" is fp32-master with
a KL term and its reference model in the main memory, `ref_model_device="cpu"`.
"""

import contextlib
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import torch
from record_qwen import three_numbers
from recording import prepare_recording, read_json, recorder_parser

from grpo_lab.base import Parser, command
from grpo_lab.bench.record import describe_machine, write_json
from grpo_lab.config import GRPOConfig
from grpo_lab.models import load_policy, pick_device
from grpo_lab.rewards import last_number_reward
from grpo_lab.teaching.first_step import first_step_movement
from grpo_lab.trainer import train

TIMES = ("time/rollout", "time/logprobs", "time/update", "step_time")
COMMON = {
    "learning_rate": 3e-6,
    "num_generations": 8,
    "generation_batch_size": 64,
    "warmup_steps": 0,
    "max_completion_length": 12,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
    "save_steps": 0,
    "disable_tqdm": True,
}
WAYS = {
    "fp32": {"precision": "fp32"},
    "fp32-master": {"precision": "fp32-master"},
    "bf16": {"precision": "bf16"},
    "bf16-naive": {"precision": "bf16-naive"},
    "checkpointing": {"precision": "fp32-master", "gradient_checkpointing": True},
    "reference": {"precision": "fp32-master", "beta": 0.04, "ref_model_device": "cpu"},
}


def measure(way: str, model_name: str, device: torch.device, steps: int) -> dict:
    """Train for a few steps; return the median seconds of each phase, the peak of memory, and m of the first step."""
    settings = COMMON | WAYS[way] | {"max_steps": steps}
    model, tokenizer = load_policy(model_name, device, settings["precision"])
    config = GRPOConfig(**settings, seed=2)
    movement, moves = first_step_movement(model), []
    history = train(
        model, tokenizer, three_numbers("train", seed=2), last_number_reward, config,
        callback=lambda *step: moves.append(movement(*step)),
    )  # fmt: skip
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {
        "seconds": {name: round(median(step.get(name, 0.0) for step in history), 2) for name in TIMES},
        "peak": torch.cuda.max_memory_allocated() if device.type == "cuda" else resident,
        "m": moves[0],
        "steps": steps,
    }


@command("notebooks/runs/record_qwen_modes.py")
def main(arguments: list[str] | None = None) -> None:
    args = _parser().parse_args(arguments)
    device = pick_device(args.device)
    file = prepare_recording(args, "qwen_modes_gpu.json" if device.type == "cuda" else "qwen_modes.json")
    if args.way:
        with contextlib.redirect_stdout(sys.stderr):
            measured = measure(args.way, args.model, device, args.steps)
        write_json(file, measured)
        return
    runs = {}
    for way in WAYS:  # a separate process for each, so that peaks of memory are separate
        with tempfile.TemporaryDirectory() as folder:
            part = Path(folder) / "part.json"
            options = ["--model", args.model, "--steps", args.steps, "--threads", args.threads, "--device", device]
            command_line = [sys.executable, __file__, "--way", way, *map(str, options), "--json", str(part)]
            subprocess.run(command_line, check=True, stdout=sys.stderr)
            runs[way] = read_json(part)
    about = {"threads": args.threads, "settings": COMMON, "ways": WAYS, "second": "in this run"}
    write_json(file, {"machine": describe_machine(device.type), **about, "runs": runs})
    print(f"{file}: {len(runs)} ways")


def _parser() -> Parser:
    parser = recorder_parser("record_qwen_modes", __doc__, model="qwen", device=True, threads=True)
    parser.add_argument("--way", choices=list(WAYS), help="this one alone, in this process")
    parser.add_argument("--steps", type=int, default=3, help="in each way (default 3)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
