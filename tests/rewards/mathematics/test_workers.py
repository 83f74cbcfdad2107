"""The workers behind `math_reward`: a bound for the batch, several at once, and nothing left behind."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from grpo_lab.rewards import math_reward
from grpo_lab.rewards.mathematics.workers import POOL, Pool, Worker

ENDLESS = r"\sqrt{9^{9^{9^{9}}}}"


def answered(text):
    return f"<answer>{text}</answer>"


@pytest.fixture
def pool():
    pool = Pool()
    pool.size = 2
    yield pool
    pool.close()


@pytest.fixture
def slow_worker(monkeypatch):
    """Workers without a process, for which "9" takes long and which count what they are asked."""
    asked = []

    def compare(self, expected, given, time_limit):
        asked.append((id(self), given))
        ended = time.monotonic() + (time_limit if "9" in given else 0.0)
        while time.monotonic() < ended and self.process != "killed":
            time.sleep(0.01)
        return "timeout" if "9" in given else "equal"

    monkeypatch.setattr(Worker, "start", lambda self: None)
    monkeypatch.setattr(Worker, "compare", compare)
    monkeypatch.setattr(Worker, "kill", lambda self: setattr(self, "process", "killed"))
    monkeypatch.setattr(Worker, "end", lambda self: None)
    return asked


def test_a_quick_batch_needs_one_worker_and_keeps_its_order(pool, slow_worker):
    assert pool.compare([("x", str(n)) for n in range(8)], 1.0, 30.0) == ["equal"] * 8
    assert len({worker for worker, _ in slow_worker}) == 1 == len(pool.workers)
    assert pool.compare([], 1.0, 30.0) == []


def test_a_slow_batch_gets_another_worker_up_to_the_size(pool, slow_worker, monkeypatch):
    monkeypatch.setattr("grpo_lab.rewards.mathematics.workers.PATIENCE", 0.1)
    assert pool.compare([("x", f"9{n}") for n in range(6)], 0.25, 30.0) == ["timeout"] * 6
    assert len(pool.workers) == 2 == len({worker for worker, _ in slow_worker})


def test_when_the_time_of_the_batch_is_over_the_rest_is_unreached_and_what_is_cheap_was_done(pool, slow_worker):
    questions = [("x", "9^9^9"), ("x", "9!^9"), ("x", "1"), ("x", "x^2"), ("x", "9^9^9^9")]
    begin = time.monotonic()
    assert pool.compare(questions, 60.0, 0.3) == ["unreached", "unreached", "equal", "equal", "unreached"]
    assert time.monotonic() - begin < 5.0


def test_an_error_in_a_worker_reaches_the_caller(pool, monkeypatch):
    def fails(self, *question):
        raise ImportError("no Math-Verify")

    monkeypatch.setattr(Worker, "start", lambda self: None)
    monkeypatch.setattr(Worker, "compare", fails)
    with pytest.raises(ImportError, match="no Math-Verify"):
        pool.compare([("x", "y")], 1.0, 1.0)


def test_there_are_at_most_four_workers_and_no_more_than_processors():
    assert 1 <= Pool().size <= min(4, os.cpu_count() or 1)


def test_what_is_left_at_the_end_of_the_batch_scores_nothing_and_is_said():
    texts = [answered(text) for text in ("4", "1+x", ENDLESS, ENDLESS.replace("9", "8"))]
    math_reward(texts[1:2], answer=["x+1"])  # a process is ready
    words = r"math_reward: [12] of 4 completions were left when the 0.4 s of the batch were over, .* row [23]"
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning, match=words):
        assert math_reward(texts, answer=["4", "x+1", "4", "4"], batch_time_limit=0.4) == [1.0, 1.0, 0.0, 0.0]
    assert time.monotonic() - begin < 10.0
    assert math_reward(texts[:2], answer=["4", "x+1"], time_limit=60.0) == [1.0, 1.0]


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_limit_for_the_batch_is_named(limit):
    with pytest.raises(ValueError, match=r"math_reward: batch_time_limit is .*; it must be positive"):
        math_reward([answered("4")], answer=["4"], batch_time_limit=limit)


@pytest.mark.slow
def test_sixty_four_bombs_end_within_the_bound_and_cost_no_right_answer_its_reward():
    towers = [rf"\sqrt{{{n}^{{9^{{9^{{9}}}}}}}}" for n in range(2, 26)]
    factorials = [f"{10**9 + n}!" for n in range(20)] + [f"(({n}!)!)!" for n in range(7, 17)]
    nested = [r"\sqrt{" * n + "2" + "}" * n + r"^{10^{10^{10}}}" for n in range(1, 11)]
    bombs = [*towers, *factorials, *nested]
    right = [f"x+{n}" for n in range(16)]
    completions = [answered(text) for text in [*bombs, *right]]
    answer = ["4"] * 24 + [r"\sqrt{2}"] * (len(bombs) - 24) + [f"{n}+x" for n in range(16)]
    assert len(bombs) == 64
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning) as said:
        rewards = math_reward(completions, answer=answer, time_limit=2.0, batch_time_limit=12.0)
    counts = [int(str(warning.message).split()[1]) for warning in said]
    assert sum(counts) <= 64 and "of the batch were over" in str(said[-1].message)
    assert time.monotonic() - begin < 12.0 + 10.0
    assert rewards == [0.0] * 64 + [1.0] * 16
    assert math_reward([answered("x")], answer=["x"], time_limit=60.0) == [1.0]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="this system sends no signal to a thread")
def test_an_interrupt_in_the_middle_ends_the_processes_and_the_next_batch_works():
    math_reward([answered("x")], answer=["x"])
    process = POOL.workers[0].process
    threading.Timer(2.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        texts = [answered(ENDLESS), *[answered(f"{ENDLESS}+{n}") for n in range(3)]]
        math_reward(texts, answer=["4", "x", "y", "z"], time_limit=1.5, batch_time_limit=60.0)
    assert time.monotonic() - begin < 10.0 and process.wait(10) is not None
    assert all(worker.process is None for worker in POOL.workers)
    assert math_reward([answered("x"), answered("y")], answer=["x", "x"], time_limit=60.0) == [1.0, 0.0]


FORKED = r"""
import os, threading, warnings
warnings.simplefilter("ignore")
from grpo_lab.rewards import math_reward
from grpo_lab.rewards.mathematics.workers import POOL
def reward(given, **limits):
    return math_reward([f"<answer>{given}</answer>"], answer=["x+1"], **{"time_limit": 60, **limits})
print(reward("1+x"))
thread = threading.Thread(target=reward, args=(r"x+\sqrt{9^{9^{9^{9}}}}",), kwargs={"time_limit": 2.0})
thread.start()  # it holds the pool while the copy is made
child = os.fork()
if child == 0:
    os._exit(0 if reward("1+x") == [1.0] and reward("x") == [0.0] else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread.join()
print(reward("1+x"))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_copy_has_workers_of_its_own(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FORKED, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[1.0]", "0", "[1.0]"]
