"""The folder of a run: what may be written into it, its checkpoints, and where to go on from."""

import json
from pathlib import Path

from grpo_lab.config import GRPOConfig
from grpo_lab.trainer import checkpoint

# Settings that may change between a run and its continuation, because no number depends on them.
FREE_SETTINGS = ("output_dir", "resume_from_checkpoint", "save_steps", "report_to", "disable_tqdm")


class RunFolder:
    """What a run writes into its output folder, and reads from it where it goes on.

    settings: of the run, as they are saved: with everything that its outcome depends on.
    """

    def __init__(self, config: GRPOConfig, settings: dict):
        self.config, self.settings, self.path = config, settings, Path(config.output_dir)

    def open(self, model, optimizer, reference) -> tuple[int, list[dict]]:
        """Begin a new run, or load the last checkpoint; returns the steps that are done, and their metrics."""
        if self.config.resume_from_checkpoint:
            if before := checkpoint.read_config(self.path):
                self.check_same_run(before)
        elif what := checkpoint.contents(self.path):
            raise FileExistsError(
                f"output_dir {str(self.path)!r} holds {what} already; choose another folder, or continue a run with "
                "resume_from_checkpoint=True"
            )
        found = checkpoint.latest(self.path)
        checkpoint.tidy(self.path, keep=found)
        if found is None:
            # New, or killed before its first checkpoint: begin at the beginning.
            checkpoint.start(self.path, self.settings)
            return 0, []
        state, tensors = checkpoint.load(found, model, reference)
        optimizer.load(state, tensors)
        return state["step"], checkpoint.read_metrics(self.path, state["num_steps_in_metrics"])

    def check_same_run(self, before: dict) -> None:
        """Raise ValueError if a setting that counts is another than when the run began."""
        now = json.loads(json.dumps(self.settings))
        changed = {k: (before.get(k), v) for k, v in now.items() if k not in FREE_SETTINGS and before.get(k) != v}
        if changed:
            listed = ", ".join(f"{name}: was {old!r}, is {new!r}" for name, (old, new) in changed.items())
            raise ValueError(
                f"config differs from that of the run in {str(self.path)!r} ({listed}); resume it unchanged"
            )

    def record(self, step: int, metrics: dict) -> None:
        """Append the metrics of a step."""
        checkpoint.append_metrics(self.path, metrics)

    def save(self, step: int, history: list[dict], model, tokenizer, optimizer, reference) -> None:
        """Write the checkpoint of a step."""
        state = {"step": step, "num_steps_in_metrics": len(history)} | optimizer.state()
        checkpoint.save(self.path, step, model, tokenizer, optimizer.tensors(), state, reference)

    def finish(self, model, tokenizer) -> None:
        """Put the trained model beside the metrics."""
        checkpoint.save_model(self.path, model, tokenizer)
