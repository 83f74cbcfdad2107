"""Tests of the process: its random state is restored, and freed memory saves new pages and changes no number."""

import ctypes
import os
import subprocess
import sys

import pytest
import torch

from grpo_lab.base import process_state
from grpo_lab.base.process_state import (
    is_set_by_environment,
    keep_freed_memory,
    random_state,
    restored_random_state,
    set_random_state,
    uses_glibc,
)


@pytest.mark.parametrize("seed", [None, 3])
def test_restored_random_state_keeps_draws_inside_the_block_from_changing_draws_after_it(seed):
    torch.manual_seed(1)
    expected = torch.rand(4)
    torch.manual_seed(1)
    with pytest.raises(ZeroDivisionError), restored_random_state(seed):
        inside = torch.rand(4)
        raise ZeroDivisionError
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)
    torch.manual_seed(1 if seed is None else seed)
    torch.testing.assert_close(inside, torch.rand(4), rtol=0, atol=0)


def test_a_random_state_that_is_set_again_gives_the_same_numbers():
    cpu = torch.device("cpu")
    state = random_state(cpu)
    expected = torch.rand(4)
    assert not torch.equal(state, random_state(cpu)), "a draw changes the state, and not the copy of it"
    set_random_state(cpu, state)
    torch.testing.assert_close(torch.rand(4), expected, rtol=0, atol=0)


VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
# A program that makes and frees arrays of 40 MiB: glibc by itself may keep arrays of up to 32 MiB. It prints the number
# of new pages and the computed total.
PROGRAM = """
import importlib.util, resource, sys

spec = importlib.util.spec_from_file_location("allocator", sys.argv[1])  # without the package, which imports torch
allocator = importlib.util.module_from_spec(spec)
spec.loader.exec_module(allocator)
if sys.argv[2] == "keep":
    assert allocator.keep_freed_memory()
MAKE
for step in range(30):
    if step == 10:  # by then it holds enough memory, but where the system puts it may make one more request necessary
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    total = STEP
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, float(total))
"""
TORCH = (
    "import torch; torch.manual_seed(0); x = torch.randn(2**21)",
    "torch.outer(torch.ones(5), x).exp().sum().item()",
)
NUMPY = (
    "import numpy as np; x, ones = np.random.default_rng(0).standard_normal(2**21, 'f4'), np.ones(5, 'f4')",
    "np.exp(np.outer(ones, x)).sum()",
)
linux = pytest.mark.skipif(not uses_glibc(), reason="this C library is not glibc")


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    """Unset the environment variables of glibc's allocator, and clear the cache of `keep_freed_memory`."""
    for name in (*VARIABLES, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    keep_freed_memory.cache_clear()
    yield
    keep_freed_memory.cache_clear()


def run(library: tuple[str, str], mode: str) -> tuple[int, float]:
    program = PROGRAM.replace("MAKE", library[0]).replace("STEP", library[1])
    environment = os.environ | {"NUMPY_MADVISE_HUGEPAGE": "0"}
    command = [sys.executable, "-c", program, process_state.__file__, mode]
    pages, total = subprocess.check_output(command, text=True, env=environment).split()
    return int(pages), float(total)


@linux
@pytest.mark.parametrize("library", [NUMPY, pytest.param(TORCH, marks=pytest.mark.slow)], ids=["numpy", "torch"])
def test_kept_freed_memory_serves_large_tensors_without_new_pages_and_changes_no_number(library):
    (usual_pages, usual_total), (pages, total) = run(library, "usual"), run(library, "keep")
    assert total == usual_total
    assert usual_pages > 10 * 40 // 2  # the pages of at least ten arrays, were they all huge
    assert pages < usual_pages / 10


@linux
@pytest.mark.parametrize("name", VARIABLES)
def test_a_parameter_that_the_environment_sets_stays(name, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", None)  # a call would raise
    monkeypatch.setenv(name, "65536")
    assert is_set_by_environment() and not keep_freed_memory()


@pytest.mark.parametrize(("value", "is_set"), [("glibc.malloc.hugetlb=1", True), ("glibc.cpu.x86_ibt=off", False)])
def test_only_glibc_tunables_of_the_allocator_count_as_set_by_the_environment(value, is_set, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", value)
    assert is_set_by_environment() == is_set


@pytest.mark.parametrize("confstr", [None, lambda name: None, lambda name: "musl 1.2"])
def test_allocator_of_a_c_library_other_than_glibc_is_left_alone(confstr, monkeypatch):
    if confstr is None:
        monkeypatch.delattr(process_state.os, "confstr", raising=False)  # Windows has no confstr
    else:
        monkeypatch.setattr(process_state.os, "confstr", confstr, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert not uses_glibc() and not keep_freed_memory()


@linux
def test_keep_freed_memory_sets_three_parameters_and_says_whether_glibc_took_them(monkeypatch):
    for answers, is_taken in (((1, 1, 1), True), ((1, 0, 1), False)):
        calls = {}

        def mallopt(parameter, value, calls=calls, answers=answers):
            calls[parameter] = value
            return answers[len(calls) - 1]

        monkeypatch.setattr(
            ctypes, "CDLL", lambda name, mallopt=mallopt: type("C", (), {"mallopt": staticmethod(mallopt)})
        )
        keep_freed_memory.cache_clear()
        assert keep_freed_memory() == is_taken
        assert calls == {-4: 0, -1: -1, -2: 64 * 2**20}  # M_MMAP_MAX, M_TRIM_THRESHOLD, M_TOP_PAD of malloc.h
