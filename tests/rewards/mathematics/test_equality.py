"""Mathematical equality, and its time limit wherever it may be called from."""

import functools
import gc
import os
import subprocess
import sys
import threading
import warnings

import pytest

from grpo_lab.rewards import math_reward as reward_in_3_seconds
from grpo_lab.rewards.mathematics.workers import POOL

# A comparison takes a millisecond; on a busy machine that may last.
math_reward = functools.partial(reward_in_3_seconds, time_limit=60.0)
# Math-Verify reads it at once and would compare it for ever, inside one integer power.
ENDLESS = r"\sqrt{9^{9^{9^{9}}}}"


def answered(text):
    return f"<think>so</think><answer>{text}</answer>"


@pytest.mark.parametrize(
    ("given", "expected", "reward"),
    [
        ("0.5", "1/2", 1.0),
        ("1/2", "0.5", 1.0),
        (r"\frac{1}{2}", "0.5", 1.0),
        (r"$\frac12$", "1/2", 1.0),
        (r"\boxed{\frac{2}{4}}", r"\boxed{0.5}", 1.0),
        (r"That is $\boxed{0.5}$, or a half", r"1/3 + 1/6 = \boxed{\frac{1}{2}}", 1.0),
        ("50%", "1/2", 1.0),
        ("0.333333", "1/3", 1.0),
        ("0.33333", "1/3", 0.0),
        ("1,234", "1234", 1.0),
        ("1234", 1234, 1.0),
        ("−３.", "-3", 1.0),
        ("1+x", "x+1", 1.0),
        (r"\{2,1\}", r"\{1,2\}", 1.0),
        ("x=4", "4", 1.0),
        ("5 cm", "5", 1.0),
        ("5", "4", 0.0),
        ("x+1", "1", 0.0),
        ("4 or 5", "4", 0.0),
        ("3, 4", "4", 0.0),
        ("the answer is 4", "4", 0.0),
        ("", "4", 0.0),
        ("", "0", 0.0),
        ("nonsense", "4", 0.0),
        ("}{", "4", 0.0),
        ("\ud800", "4", 0.0),
        ("4", None, None),
    ],
)
def test_equality(given, expected, reward):
    assert math_reward([answered(given)], answer=[expected]) == [reward]


def test_without_an_answer_block_the_box_after_the_thinking_counts():
    texts = [
        r"So it is \boxed{\frac{1}{2}}.",
        r"<think>\boxed{3}</think> It is \boxed{0.5}",
        r"<think>\boxed{0.5}</think> It is 3",
        "It is 0.5",
        "<answer>0.5",
        r"\boxed{0.5} <answer>3</answer>",
        r"\boxed{0.5} </answer>",
        [{"role": "assistant", "content": r"\boxed{0.5}"}],
    ]
    assert math_reward(texts, answer=["1/2"] * 8) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_agrees_with_trl_on_boxes():
    accuracy_reward = pytest.importorskip("trl.rewards").accuracy_reward
    boxes = [r"\frac{1}{3}", r"\frac{1}{2}", "0.5", "x+1", "12", r"\sqrt{2}", r"\{1,2\}", "1,000", "3 = x"]
    golds = ["1/3", "$0.5$", r"\frac{2}{4}", "$1+x$", "13", r"$\sqrt{2}$", r"$\{2,1\}$", "1000", "$x=3$"]
    completions = [[{"role": "assistant", "content": rf"It is $\boxed{{{box}}}$"}] for box in boxes]
    assert math_reward(completions, answer=golds) == accuracy_reward(completions, golds)


@pytest.mark.parametrize("unreadable", ["", "¿", r"\frac{1}{", "?"])
def test_an_expected_answer_that_is_no_mathematics_is_left_out_and_said(unreadable):
    with pytest.warns(RuntimeWarning, match=r"math_reward: 1 of 2 expected answers cannot be read .* row 1"):
        assert math_reward([answered("4")] * 2, answer=["4", unreadable]) == [1.0, None]


def test_time_runs_out_and_the_next_call_works():
    with pytest.warns(RuntimeWarning, match=r"math_reward: 2 of 3 completions were not evaluated within 1 s .* row 1"):
        # The same pair twice is compared once, so this waits once.
        rewards = math_reward([answered("4"), answered(ENDLESS), answered(ENDLESS)], answer=["4"] * 3, time_limit=1.0)
    assert rewards == [1.0, 0.0, 0.0]
    assert math_reward([answered("4")], answer=["4"]) == [1.0]


def test_a_process_that_was_killed_is_replaced():
    math_reward([answered("x")], answer=["x"])
    POOL.workers[0].process.kill()
    POOL.workers[0].process.wait()
    assert math_reward([answered("x")], answer=["x"]) == [1.0]


def test_an_interrupt_leaves_no_reply_behind(monkeypatch):
    math_reward([answered("x")], answer=["x"])
    interrupted = POOL.workers[0].process

    class Interrupted:
        close = interrupted.stdout.close

        def readline(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(interrupted, "stdout", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        math_reward([answered("x")], answer=["x"])
    assert interrupted.poll() is not None
    assert math_reward([answered("x")], answer=["y"]) == [0.0]


def test_the_time_is_up_only_for_a_comparison():
    math_reward([answered("x")], answer=["x"], time_limit=1.0)
    process = POOL.workers[0].process
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    assert math_reward([answered("y")], answer=["y"]) == [1.0] and POOL.workers[0].process is process


@pytest.mark.slow
def test_it_works_in_threads():
    rewards = {}

    def work(number, time_limit):
        texts = [answered(f"{number}+x"), answered(f"{number}.5x"), answered(ENDLESS)][: 2 + (number == 0)]
        rewards[number] = math_reward(texts, answer=[f"x+{number}"] * len(texts), time_limit=time_limit)

    # One of them waits for its time to run out while the others have questions too.
    threads = [threading.Thread(target=work, args=(n, 60.0 if n else 1.0)) for n in range(4)]
    with pytest.warns(RuntimeWarning, match=r"1 of 3 completions were not evaluated"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert rewards == {0: [1.0, 0.0, 0.0], 1: [1.0, 0.0], 2: [1.0, 0.0], 3: [1.0, 0.0]}


SCRIPT = r"""
import sys, threading, warnings
warnings.simplefilter("ignore")
from grpo_lab.rewards import math_reward
print("main runs once")
text = "<answer>%s</answer>"
endless = [text % r"\sqrt{9^{9^{9^{9}}}}"]
thread = threading.Thread(target=lambda: print(math_reward(endless, answer=["4"], time_limit=0.2)))
thread.start()
thread.join()
print(math_reward([text % "x+1"], answer=["1+x"], time_limit=60))
from grpo_lab.rewards.mathematics.workers import POOL
print(POOL.workers[0].process.pid)
"""


@pytest.mark.slow
def test_a_script_without_a_main_guard_runs_once_and_leaves_no_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "default"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    *lines, pid = done.stdout.splitlines()
    assert lines == ["main runs once", "[0.0]", "[1.0]"]
    if os.name == "posix":
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


@pytest.mark.slow
def test_closing_leaves_nothing_open():
    math_reward([answered("x")], answer=["x"])
    process = POOL.workers[0].process
    POOL.close()
    assert process.poll() is not None and process.stdin.closed and process.stdout.closed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()


NOISY = """
import sys
from types import SimpleNamespace
sys.modules["latex2sympy2_extended"] = SimpleNamespace(NormalizationConfig=dict)
LatexExtractionConfig = dict
def parse(text, **kwargs):
    print("noise")
    return [text]
def verify(expected, given, **kwargs):
    print("more noise")
    return True
"""


@pytest.fixture
def another_math_verify(monkeypatch, tmp_path):
    def use(source):
        (tmp_path / "math_verify.py").write_text(source, encoding="utf-8")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        POOL.close()

    yield use
    POOL.close()


def test_a_worker_that_does_not_start_says_why(another_math_verify):
    another_math_verify("raise ImportError('no Math-Verify here')")
    with pytest.raises(
        ImportError, match=r"did not start \(ImportError: no Math-Verify here\).*pip install math-verify"
    ):
        math_reward([answered("x")], answer=["x"])
    another_math_verify("raise SystemExit(3)")
    with pytest.raises(ImportError, match=r"did not start \(exit status 3\)"):
        math_reward([answered("x")], answer=["x"])


def test_what_a_library_prints_is_no_reply(another_math_verify):
    another_math_verify(NOISY)
    assert math_reward([answered("x"), answered("y")], answer=["x", "x"]) == [1.0, 1.0]


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_time_limit_is_named(limit):
    with pytest.raises(ValueError, match=r"math_reward: time_limit is .*; it must be positive"):
        math_reward([answered("4")], answer=["4"], time_limit=limit)


def test_nothing_is_not_the_right_answer_even_without_an_answer_block():
    nothing = ["", " \n", "<think>4</think>", "<think>4</think><answer></answer>", "<answer> </answer>"]
    assert math_reward(nothing, ["4"] * len(nothing)) == [0.0] * len(nothing)
