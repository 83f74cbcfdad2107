"""The command `python -m grpo_lab.train --model M --task T --output_dir DIR`: plan a run, check it and train."""

from dataclasses import replace

from grpo_lab.base import Stopped, command
from grpo_lab.base.checks import InputError
from grpo_lab.train.options import read_options
from grpo_lab.train.processes import set_up_process


@command("grpo_lab.train")
def main(arguments: list[str] | None = None) -> int | None:
    """Train a model as the arguments say; with `--dry_run`, report the plan and its problems instead."""
    # Before the options are read: reading a file for TRL prints, and only one process may print.
    with set_up_process():
        options = read_options(arguments)
        # Both import transformers, which takes seconds. So --help and the error for a wrong option appear at once.
        from grpo_lab.train import checks
        from grpo_lab.train.plan import make_plan

        try:
            plan = make_plan(options)
        except InputError as error:
            if options.is_dry_run and error.combined_errors:
                return checks.report_invalid_options(error)
            raise
        if options.is_dry_run:
            return checks.report_dry_run(plan)
        for check in checks.checks_of_plan(plan):
            check.function()
        print(*plan.description_lines(), sep="\n")
        plan, memory_lines = plan.fitted_to_memory()
        if memory_lines:
            print(*memory_lines, sep="\n")
        model, tokenizer = plan.engine.load(plan.model_files, plan.loading_precision)
        inputs = replace(plan.inputs, model=model, tokenizer=tokenizer)
        try:
            history = plan.engine.run(inputs, saved_options=options.saved)
        except Stopped as stop:
            if stop.resume_hint is None:
                raise
            raise Stopped(stop.message, stop.exit_code, f"Go on with\n  {options.resuming_command()}") from None
        print(*plan.closing_lines(history), sep="\n")
    return None
