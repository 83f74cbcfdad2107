"""The process of verifiers: it keeps its time limits, is replaced if it ends, and leaves no process behind."""

import os
import subprocess
import sys
import time

import pytest

from grpo_lab.rewards import math_reward
from grpo_lab.rewards.verifier_process import VERIFIER_PROCESS
from grpo_lab.rewards.verifiers import gym_reward

# Math-Verify parses this quickly, but would compare it for ever, within one integer power.
ENDLESS = r"\sqrt{9^{9^{9^{9}}}}"


def rewarded(expected, *answers, **limits):
    texts = [f"<answer>{text}</answer>" for text in answers]
    return math_reward(texts, answer=[expected] * len(texts), **({"time_limit": 60.0} | limits))


@pytest.mark.slow
def test_math_reward_scores_0_and_warns_after_the_time_limit():
    assert rewarded("x+1", "1+x") == [1.0]  # a process is ready
    late = r"2 of 3 completions were not evaluated within 3 s each and 30 s together, and scored 0.0; first: row 1"
    with pytest.warns(RuntimeWarning, match=late):
        rewards = rewarded("2^2", r"\sqrt{16}", ENDLESS, ENDLESS, time_limit=3)
    assert rewards == [1.0, 0.0, 0.0], "compared once, so one wait"
    assert rewarded("y+2", "2+y") == [1.0]  # a process is ready again
    late = "2 of 3 completions were not evaluated within 60 s each and 2 s together, and scored 0.0; first: row 0"
    with pytest.warns(RuntimeWarning, match=late):
        assert rewarded("x+1", "x+" + ENDLESS, "-x+" + ENDLESS, "1+x", batch_time_limit=2) == [0.0, 0.0, 1.0]


@pytest.mark.slow
def test_a_process_that_is_killed_or_interrupted_is_replaced(monkeypatch):
    rewarded("x", "x")
    VERIFIER_PROCESS.process.kill()
    VERIFIER_PROCESS.process.wait()
    assert rewarded("x", "x") == [1.0]
    interrupted = VERIFIER_PROCESS.process

    class Interrupted:
        close = interrupted.stdout.close

        def readline(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(interrupted, "stdout", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        rewarded("x", "x")
    assert interrupted.poll() is not None
    assert rewarded("y", "x") == [0.0], "no reply to an earlier question"


STUB_OF_REASONING_GYM = """
class Sevens:
    def __getitem__(self, index):
        return {"question": "3 + 4", "answer": "7"}
    def score_answer(self, answer, problem):
        return float(answer == problem["answer"])
def create_dataset(generator, **options):
    return Sevens()
"""
NOISY = """
import sys
from types import SimpleNamespace
sys.modules["latex2sympy2_extended"] = SimpleNamespace(NormalizationConfig=dict)
LatexExtractionConfig = dict
def parse(text, *args, **kwargs):
    print("noise")
    return [text]
def verify(expected, given, **kwargs):
    print("more noise")
    return True
"""


@pytest.mark.slow
def test_verifier_process_with_a_missing_or_noisy_library(monkeypatch, tmp_path):
    def use(source):
        (tmp_path / "math_verify.py").write_text(source, encoding="utf-8")
        VERIFIER_PROCESS.end()

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    use("raise ImportError('no Math-Verify here')")
    with pytest.raises(ImportError, match=r"\(ImportError: no Math-Verify here\).*pip install .grpo-lab\[math\]"):
        rewarded("x", "x")
    assert rewarded("4", "4", "5") == [1.0, 0.0], "plain numbers do without"
    use("raise SystemExit(3)")
    with pytest.raises(ImportError, match=r"did not start \(it ended at once\)"):
        rewarded("x", "x")
    use(NOISY)
    assert rewarded("x", "x", "y") == [1.0, 1.0]
    VERIFIER_PROCESS.end()


def test_each_reward_needs_its_own_library_alone_and_names_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    question = {"generator": "chain_sum", "options": "{}", "index": 0}
    (tmp_path / "math_verify.py").write_text("raise ImportError('no Math-Verify here')", encoding="utf-8")
    (tmp_path / "reasoning_gym.py").write_text(STUB_OF_REASONING_GYM, encoding="utf-8")
    VERIFIER_PROCESS.end()
    assert gym_reward(["<answer>7</answer>", "<answer>8</answer>"], gym=[question] * 2) == [1.0, 0.0]
    with pytest.raises(ImportError, match=r"^math_reward needs Math-Verify, .*pip install .grpo-lab\[math\]"):
        rewarded("x", "x")
    (tmp_path / "reasoning_gym.py").write_text("raise ImportError('no problems here')", encoding="utf-8")
    needs = r"^gym_reward needs reasoning-gym, which did not start \(ImportError: no problems here\)"
    with pytest.raises(ImportError, match=needs + r".*pip install .grpo-lab\[gym\]"):
        gym_reward(["<answer>7</answer>"], gym=[question])
    VERIFIER_PROCESS.end()


@pytest.mark.slow
def test_math_reward_ends_64_endless_expressions_in_time_and_keeps_the_rewards_of_right_answers():
    towers = [rf"\sqrt{{{n}^{{9^{{9^{{9}}}}}}}}" for n in range(2, 26)]
    factorials = [f"{10**9 + n}!" for n in range(20)] + [f"(({n}!)!)!" for n in range(7, 17)]
    nested = [r"\sqrt{" * n + "2" + "}" * n + r"^{10^{10^{10}}}" for n in range(1, 11)]
    bombs, right = [*towers, *factorials, *nested], [f"{n}+\\sqrt{{2}}-{n}" for n in range(16)]
    begin = time.monotonic()
    with pytest.warns(RuntimeWarning) as warned:
        rewards = rewarded(r"\sqrt{2}", *bombs, *right, time_limit=2.0, batch_time_limit=12.0)
    assert "64 of 80 completions were not evaluated" in str(warned[-1].message)
    assert time.monotonic() - begin < 12.0 + 10.0
    assert rewards == [0.0] * 64 + [1.0] * 16
    assert rewarded("x", "x") == [1.0]


SCRIPT = r"""
import os, threading, warnings
warnings.simplefilter("ignore")
from grpo_lab.rewards import math_reward
from grpo_lab.rewards.verifier_process import VERIFIER_PROCESS
def reward(given, **limits):
    return math_reward([f"<answer>{given}</answer>"], answer=["x+1"], **{"time_limit": 60, **limits})
print("main runs once", reward("1+x"))
thread = threading.Thread(target=reward, args=(r"x+\sqrt{9^{9^{9^{9}}}}",), kwargs={"time_limit": 2.0})
thread.start()  # the thread uses the process while this one is forked
if hasattr(os, "fork"):
    child = os.fork()
    if child == 0:
        os._exit(0 if reward("1+x") == [1.0] and reward("x") == [0.0] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
thread.join()
print(reward("1+x"))
print(VERIFIER_PROCESS.process.pid)
"""


@pytest.mark.slow
def test_verifier_process_in_a_script_that_forks_leaves_no_process(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONWARNINGS": "default"}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    *lines, pid = done.stdout.splitlines()
    assert lines == ["main runs once [1.0]", "[1.0]"]
    if os.name == "posix":
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)
