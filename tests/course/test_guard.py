"""Whatever a function does, the check comes back, says what it was, and leaves everything as it found it."""

import builtins
import itertools
import sys
import threading
import types

import pytest
import torch

from grpo_lab.course import check, guard
from grpo_lab.course.checking.run_case import run_student
from grpo_lab.course.guard import SHOWN, guarded
from tests.course.toys import MEAN, scaled_mean


def endless(values, mask, scale=1.0):
    while True:
        pass


def endless_and_stubborn(values, mask, scale=1.0):
    tries = 0
    while tries < 10**12:
        try:
            tries += 1
        except:  # noqa: E722
            continue


RELEASED = threading.Event()


def waiting(values, mask, scale=1.0):
    RELEASED.wait(600)  # one call, which no exception can interrupt


def interrupting(values, mask, scale=1.0):
    raise KeyboardInterrupt


FAULTS = [
    (endless, "endless"),
    (endless_and_stubborn, "endless"),
    (lambda values, mask, scale=1.0: [print("all work and no play") for _ in itertools.count()], "flood"),
    (lambda values, mask, scale=1.0: sys.exit(0), "exit"),
    (interrupting, "exit"),
    (lambda values, mask, scale=1.0: input("which?"), "input"),
]


@pytest.mark.parametrize(("function", "fault"), FAULTS)
def test_each_fault_is_stopped_and_named_and_the_next_check_is_not_disturbed(function, fault):
    out, err, ask = sys.stdout, sys.stderr, builtins.input
    outcomes = run_student(function, MEAN, seconds=0.2 if fault == "endless" else 60.0)
    assert [o.fault for o in outcomes] == [fault]
    assert (sys.stdout, sys.stderr, builtins.input) == (out, err, ask)
    assert not any(t.name == "exercise" and t.is_alive() for t in threading.enumerate())
    assert check(scaled_mean, MEAN).right


def test_a_call_that_cannot_be_stopped_is_left_behind_and_reported(monkeypatch):
    monkeypatch.setattr(guard, "_GRACE", 0.2)
    assert [o.fault for o in run_student(waiting, MEAN, seconds=0.2)] == ["hang"]
    RELEASED.set()
    left = [thread for thread in threading.enumerate() if thread.name == "exercise"]
    for thread in left:
        thread.join(60)
    assert len(left) == 1 and not left[0].is_alive()


def test_what_is_printed_is_kept_up_to_a_length_and_other_threads_print_as_ever(capsys):
    other = threading.Thread(target=lambda: print("from elsewhere"))

    def work():
        print("x" * (SHOWN + 50))
        other.start()
        other.join()
        return 7

    ran = guarded(work, 60.0)
    assert ran.result == 7 and ran.printed.startswith("x" * SHOWN) and "50 more" in ran.printed.replace("51", "50")
    assert capsys.readouterr().out == "from elsewhere\n"


def test_an_interrupt_of_the_notebook_stops_the_function_too():
    main, stopped = threading.current_thread(), threading.Event()

    def work():
        guard._raise_in_thread(guard.ctypes.c_ulong(main.ident), guard.ctypes.py_object(KeyboardInterrupt))
        try:
            while True:
                pass
        finally:
            stopped.set()

    with pytest.raises(KeyboardInterrupt):
        guarded(work, 60.0)
    assert stopped.is_set()


def test_the_exit_of_a_notebook_does_not_end_the_kernel(monkeypatch):
    class Shell:
        ended = False

        def ask_exit(self):
            self.ended = True

    shell = Shell()
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    assert guarded(lambda: shell.ask_exit(), 60.0).fault == "exit"
    assert not shell.ended
    shell.ask_exit()
    assert shell.ended


def test_an_exception_shows_the_lines_of_the_student_and_no_others():
    def helper(values):
        return torch.cat([values, 3])

    def mine(values, mask, scale=1.0):
        return helper(values)

    outcome = run_student(mine, MEAN)[0]
    assert outcome.error == "TypeError"
    assert [line.partition(": ")[2] for line in outcome.trace.splitlines()] == [
        "return helper(values)",
        "return torch.cat([values, 3])",
    ]

    def recursive(values, mask, scale=1.0):
        return recursive(values, mask, scale)

    assert run_student(recursive, MEAN)[0].error == "RecursionError"
