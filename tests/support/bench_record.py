"""Make the result of a benchmark run, as `measure_run` returns it."""

from grpo_lab.bench.record import RunResult


def run_result(seconds: list[float], rewards: list[float]) -> RunResult:
    """Return a result whose CPU seconds are half of its seconds."""
    return RunResult(seconds=seconds, cpu_seconds=[s / 2 for s in seconds], reward=rewards, peak_memory=300)
