"""What the tests of the trainer share: a disk that nobody waits for, and a run that nothing disturbs."""

import os

import pytest

from grpo_lab.trainer import experience_logprobs
from tests.support.resuming import cheap_run_under, real_run


@pytest.fixture(autouse=True)
def _nobody_waits_for_the_disk(request, monkeypatch):
    """No power fails in a quick test; the long ones wait. (An axe takes note of what is waited for, see there.)"""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(os, "fsync", lambda number: None)


@pytest.fixture(scope="session")
def counted_run(tmp_path_factory):
    """How often a run that nothing disturbs changes the file system, and its end."""
    return cheap_run_under(tmp_path_factory.mktemp("undisturbed") / "out", None)


@pytest.fixture(scope="session")
def undisturbed(counted_run):
    return counted_run[1]


@pytest.fixture(scope="session")
def whole_run(tmp_path_factory):
    """A finished run with every optional part; read only."""
    return real_run(tmp_path_factory.mktemp("whole") / "out")


@pytest.fixture
def shapes(monkeypatch):
    """The sizes in each call of `compute_logprobs`: columns of prompts, rows, columns of completions."""
    sizes, compute_logprobs = [], experience_logprobs.compute_logprobs

    def spy(model, prompt_ids, prompt_mask, completion_ids, *arguments, **keywords):
        sizes.append((prompt_ids.shape[1], *completion_ids.shape))
        return compute_logprobs(model, prompt_ids, prompt_mask, completion_ids, *arguments, **keywords)

    monkeypatch.setattr(experience_logprobs, "compute_logprobs", spy)
    return sizes
