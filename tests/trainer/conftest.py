"""Fixtures of the tests of the trainer: no waiting for the disk, uninterrupted runs, and recorded shapes."""

import os

import pytest

from grpo_lab.trainer import experience
from tests.support.resuming import cheap_run_under, real_run


@pytest.fixture(autouse=True)
def _no_fsync_in_fast_tests(request, monkeypatch):
    """Replace `os.fsync` in fast tests, which need no protection against a power failure; slow tests keep it."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(os, "fsync", lambda number: None)


@pytest.fixture(scope="session")
def counted_run(tmp_path_factory):
    """The number of changes to the file system by an uninterrupted run, and the result of the run."""
    return cheap_run_under(tmp_path_factory.mktemp("undisturbed") / "out", None)


@pytest.fixture(scope="session")
def undisturbed(counted_run):
    return counted_run[1]


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory):
    """A finished run with every optional part; tests must not change it."""
    return real_run(tmp_path_factory.mktemp("whole") / "out")


@pytest.fixture
def logprob_call_shapes(monkeypatch):
    """A list of (columns of the prompts, rows, columns of the completions) for each call of `compute_logprobs`."""
    sizes, compute_logprobs = [], experience.compute_logprobs

    def spy(model, prompt_ids, prompt_mask, completion_ids, *arguments, **keywords):
        sizes.append((prompt_ids.shape[1], *completion_ids.shape))
        return compute_logprobs(model, prompt_ids, prompt_mask, completion_ids, *arguments, **keywords)

    monkeypatch.setattr(experience, "compute_logprobs", spy)
    return sizes
