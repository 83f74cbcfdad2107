"""Tests of `keep_freed_memory`: it saves new pages, changes no computed number and respects the user's settings."""

import ctypes

import pytest
import torch

from grpo_lab.base import allocator
from grpo_lab.base.allocator import is_set_by_environment, keep_freed_memory, uses_glibc
from tests.support.fork import in_a_fork

VARIABLES = ("MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_")
WARM_UP, STEPS, ROWS, COLUMNS = 6, 3, 3, 2**22  # a tensor is 48 MiB: glibc requests more than 32 MiB at a time from the system


def count_new_pages(keep: bool) -> tuple[int, float]:
    """Make and free large tensors in a fork; return the number of new pages and a total that was computed."""
    import resource  # not on Windows

    if keep:
        assert keep_freed_memory()
    x = torch.randn(COLUMNS, generator=torch.Generator().manual_seed(0))
    for step in range(WARM_UP + STEPS):
        if step == WARM_UP:  # by then the process holds enough memory for all later steps
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        total = torch.outer(torch.ones(ROWS), x).exp().sum().item()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, total


linux = pytest.mark.skipif(not uses_glibc(), reason="this C library is not glibc")


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    """Unset the environment variables of glibc's allocator, and clear the cache of `keep_freed_memory`."""
    for name in (*VARIABLES, "GLIBC_TUNABLES"):
        monkeypatch.delenv(name, raising=False)
    keep_freed_memory.cache_clear()
    yield
    keep_freed_memory.cache_clear()


@linux
def test_large_tensors_that_come_and_go_take_no_new_pages_and_hold_the_same_numbers():
    (usual_pages, usual_total), (pages, total) = (in_a_fork(count_new_pages, keep) for keep in (False, True))
    assert total == usual_total
    assert usual_pages > STEPS * ROWS * COLUMNS * 4 // 2**21  # at least one page per step for each huge page
    assert pages < usual_pages / 10


@linux
@pytest.mark.parametrize("name", VARIABLES)
def test_a_parameter_that_the_environment_sets_stays(name, monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", None)  # a call would raise
    monkeypatch.setenv(name, "65536")
    assert is_set_by_environment() and not keep_freed_memory()


@pytest.mark.parametrize(("value", "is_set"), [("glibc.malloc.hugetlb=1", True), ("glibc.cpu.x86_ibt=off", False)])
def test_tunables_count_where_they_are_of_the_allocator(value, is_set, monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", value)
    assert is_set_by_environment() == is_set


@pytest.mark.parametrize("confstr", [None, lambda name: None, lambda name: "musl 1.2"])
def test_another_c_library_is_left_alone(confstr, monkeypatch):
    if confstr is None:
        monkeypatch.delattr(allocator.os, "confstr", raising=False)  # Windows has no confstr
    else:
        monkeypatch.setattr(allocator.os, "confstr", confstr, raising=False)
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert not uses_glibc() and not keep_freed_memory()


@linux
def test_it_sets_three_parameters_and_says_whether_glibc_took_them(monkeypatch):
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
