"""Whatever a function does, the check comes back, says what it was, and leaves everything as it found it."""

import builtins
import inspect
import sys
import threading
import types

import pytest
import torch

import grpo_lab.kl
from grpo_lab.course import check
from grpo_lab.course.checking import card
from grpo_lab.course.checking import compare as compare_module
from grpo_lab.course.checking.run_case import run_student
from grpo_lab.course.guard import limits as guard
from grpo_lab.course.guard import watch
from grpo_lab.course.guard.limits import FLOOD, SHOWN, guarded
from tests.course.toys import MEAN, WORDS, not_masked, scaled_mean

REAL_EQUAL = torch.equal


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


def flooding(values, mask, scale=1.0):
    while True:
        print("all work and no play")


def flooding_and_stubborn(values, mask, scale=1.0):
    for _ in range(3 * FLOOD // 20):
        try:
            print("all work and no play")
        except BaseException:
            continue
    return scaled_mean(values, mask, scale)


def leaving(values, mask, scale=1.0):
    sys.exit(0)


def interrupting(values, mask, scale=1.0):
    raise KeyboardInterrupt


def asking(values, mask, scale=1.0):
    return input("which?")


FAULTS = [
    (endless, "endless"), (endless_and_stubborn, "endless"), (flooding, "flood"), (flooding_and_stubborn, "flood"),
    (leaving, "exit"), (interrupting, "exit"), (asking, "input"),
]  # fmt: skip


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


def wrong_and_patching(what):
    def mine(values, mask, scale=1.0):
        what()
        return not_masked(values, mask, scale)

    return mine


def _patch_equal():
    torch.equal = torch.allclose = torch.isclose = lambda *args, **kwargs: torch.tensor(True)


def _patch_tensor():
    torch.Tensor.__eq__ = lambda self, other: torch.tensor(True)
    torch.Tensor.tolist = lambda self: [1.0]
    torch.Tensor.detach = lambda self: torch.zeros(1)


def _patch_builtins():
    builtins.all = lambda items: True
    builtins.isinstance = lambda *args: True


def _patch_reference():
    grpo_lab.kl.kl_estimate = not_masked


def _patch_code_of_reference():
    inspect.unwrap(compare_module.equal).__code__ = (lambda got, expected, exercise: True).__code__


def _patch_comparison():
    compare_module.equal = compare_module.matching = lambda *args: True


def _patch_exercise():
    object.__setattr__(MEAN, "tolerance", 1e9)


def _patch_verdict():
    from grpo_lab.course.checking.verdict import Verdict

    Verdict.right = property(lambda self: True)


def _patch_watch():
    from grpo_lab.course.guard import watch

    watch._undo = watch._put = lambda *args: []
    compare_module.equal = lambda *args: True


PATCHES = [
    _patch_equal, _patch_tensor, _patch_builtins, _patch_reference, _patch_comparison, _patch_exercise, _patch_verdict,
    _patch_watch,
]  # fmt: skip


@pytest.mark.parametrize("patch", PATCHES)
def test_replacing_parts_of_the_checker_helps_nobody(patch):
    reference = grpo_lab.kl.kl_estimate
    check(scaled_mean, MEAN)  # everything is loaded, and known as it is
    verdict = check(wrong_and_patching(patch), MEAN)
    assert (verdict.status, verdict.fault, verdict.right) == ("form", "patched", False)
    assert torch.equal is REAL_EQUAL and grpo_lab.kl.kl_estimate is reference and MEAN.tolerance == 1e-6
    assert check(scaled_mean, MEAN).right
    assert check(not_masked, MEAN).misconceptions == ("not-masked",)


def test_code_of_a_function_is_put_back():
    check(scaled_mean, MEAN)
    code = inspect.unwrap(compare_module.equal).__code__
    assert check(wrong_and_patching(_patch_code_of_reference), MEAN).fault == "patched"
    assert inspect.unwrap(compare_module.equal).__code__ is code


def test_a_library_that_wraps_its_own_functions_meanwhile_is_no_trick():
    def mine(values, mask, scale=1.0):
        import torch._dynamo  # noqa: F401

        return scaled_mean(values, mask, scale)

    assert check(mine, MEAN).right


def test_what_python_notes_in_a_class_when_an_object_is_copied_is_no_trick():
    check(scaled_mean, MEAN)  # everything is loaded, and known as it is

    def mine(values, mask, scale=1.0):
        torch.Tensor.__slotnames__ = []  # as copyreg does, each time with a new list
        return scaled_mean(values, mask, scale)

    before = vars(torch.Tensor).get("__slotnames__")
    assert check(mine, MEAN).right
    torch.Tensor.__slotnames__ = [] if before is None else before


def on_card(function, exercise=MEAN, index=0):
    return card.trial(function, exercise, index, 0).device


@pytest.mark.parametrize(
    ("compute", "found"),
    [
        (lambda x, m: x + torch.arange(x.shape[1]), "mixed"),
        (lambda x, m: x + torch.arange(x.shape[1], device=x.device), ""),
        (lambda x, m: x + torch.arange(x.shape[1]).to(x.device), ""),
        (lambda x, m: x * torch.tensor(2.0), ""),
        (lambda x, m: x + torch.tensor([1.0, 2.0]), "mixed"),
        (lambda x, m: x + torch.tensor([1.0, 2.0], device=x.device), ""),
        (lambda x, m: x + x.new_tensor([1.0, 2.0]) + x.new_zeros(2) + torch.ones_like(x), ""),
        (lambda x, m: x.cpu() * 2, "left behind"),
        (lambda x, m: torch.tensor(x.tolist()), "left behind"),
        (lambda x, m: x[:, torch.tensor([1, 0])], ""),
        (lambda x, m: torch.zeros(1, 2)[m], "mixed"),
        (lambda x, m: x[m] if float(x.sum()) > 0 else torch.zeros(2), ""),
        (lambda x, m: x.numpy(), "mixed"),
    ],
)
def test_a_pretended_card_finds_what_a_card_would(compute, found):
    result = on_card(lambda values, mask, scale=1.0: compute(values, mask))
    assert result.startswith(found) if found else result == ""


def test_rows_written_into_a_new_tensor_stay_where_that_was_made():
    def rows(values, mask, scale=1.0, like=False):
        out = torch.zeros_like(values) if like else torch.zeros(values.shape)
        for b in range(len(values)):
            out[b] = values[b]
        return out

    assert on_card(rows) == "left behind" and on_card(lambda *a, **k: rows(*a, like=True)) == ""


def test_the_pretence_says_nothing_where_it_does_not_apply():
    assert on_card(WORDS.function, WORDS).startswith("unknown")
    assert on_card(lambda values, mask, scale=1.0: 1 / 0).startswith("unknown")


def test_what_torch_wraps_of_ours_is_nobodys_replacement():
    """The first optimizer of a class wraps its `step`: a check after a training must not blame the student for it."""

    class Ours(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    Ours.__module__ = "grpo_lab.trainer.optim"
    watch._remember([Ours])
    undo = watch.snapshot()
    before = Ours.step
    Ours([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    assert Ours.step is not before and undo() == ()
    Ours.step = lambda self: None
    assert any(name.endswith("step") for name in undo())
    watch._known.pop(id(Ours))
