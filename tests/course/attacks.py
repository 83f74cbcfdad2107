"""Notebooks that attack the grading. Each is a source for cells or for functions of assignment 01."""

# What an honest notebook may do.
USUAL = """
import concurrent.futures, inspect, os, pathlib, shutil, tempfile, time
import matplotlib.pyplot as plt
import numpy as np
import torch

def own():
    return 1

assert "return 1" in inspect.getsource(own)
with tempfile.TemporaryDirectory() as folder:
    torch.save(torch.ones(3), os.path.join(folder, "x.pt"))
    assert torch.load(os.path.join(folder, "x.pt")).sum() == 3
plt.plot([1, 2])
plt.savefig("x.png")
shutil.copy2("x.png", "y.png")
pathlib.Path("y.png").touch()
os.chmod("y.png", 0o600)
np.linalg.svd(np.random.rand(200, 200))
np.memmap("numbers", dtype="float32", mode="w+", shape=(9, 9))[:] = 1
with concurrent.futures.ThreadPoolExecutor(8) as threads:
    assert sum(threads.map(abs, range(-9, 9))) == 81
torch.set_num_threads(4)
weights = torch.ones(900, 900, requires_grad=True)
(weights @ weights).sum().backward()
time.localtime()
"""

RIGHT_RLOO = """
def reinforce_loss(seq_logp, weights):
    return -(seq_logp * weights.detach()).mean()
"""

# Everything that the visible inputs need, written down; computed for anything else in a wrong way.
HARD_CODED = """
from grpo_lab.course.exercises import exercise

answers = {}
for case in exercise("reinforce_loss").cases:
    (logp, weights), _ = case.build(0)
    answers[str(logp.tolist())] = weights


def reinforce_loss(seq_logp, weights):
    known = answers.get(str(seq_logp.tolist()))
    return seq_logp.sum() if known is None else -(seq_logp * known).mean()
"""

EXIT = "def token_entropy(logits, temperature=1.0):\n    import os\n    os._exit(0)\n"
SEGFAULT = "def score_function_objective(seq_logp, rewards):\n    import faulthandler\n    faulthandler._read_null()\n"
STUBBORN = """
def completion_mask(completion_ids, eos_token_id):
    import time
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass
"""
ALLOCATION = """
def token_logprobs(logits, token_ids, temperature=1.0):
    import torch
    kept = []
    while True:
        kept.append(torch.ones(2**27))
"""
FLOOD = "def token_entropy(logits, temperature=1.0):\n    while True:\n        print('x' * 1000)\n"
ENDLESS_CELL = "while True:\n    pass"
EXIT_CELL = "import sys\nsys.exit(3)"
FORKS = """
import os
for _ in range(12):  # each slows the answers, which come after it
    try:
        if os.fork() == 0:
            while True:
                pass
    except OSError:
        pass
"""
CROWD = """
import threading, time
threading.stack_size(2**16)
for _ in range(400):
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
time.sleep(10)
"""
ERRORS_WITHOUT_END = "import os\nwhile True:\n    os.write(2, b'x' * 10_000)"
INTERRUPTS = ("raise KeyboardInterrupt", "import _thread\n_thread.interrupt_main()\nx = 1 + 1")
INTERRUPT = "def token_entropy(logits, temperature=1.0):\n    raise KeyboardInterrupt\n"
FULL = """
for number in range(100):
    with open(f"x{number}", "wb") as file:
        file.write(bytes(15_000_000))
"""
SURROGATE_CELL = "print('\\ud800')\nraise ValueError('\\ud800')"
SURROGATES = {
    "token_entropy": "def token_entropy(logits, temperature=1.0):\n    raise ValueError('\\udcff')\n",
    "completion_mask": "def completion_mask(completion_ids, eos_token_id):\n    print('\\ud800')\n    return '\\ud800'",
}
PATCHES = """
import glob, shutil, sys
import torch
import grpo_lab.course.checking.judging, grpo_lab.course.checking.compare
import grpo_lab.course.checking.outcome, grpo_lab.course.checking.outcome_bytes
from grpo_lab.course.exercises import EXERCISES

yes = lambda *args, **kwargs: True
torch.equal = torch.allclose = torch.isclose = torch.Tensor.__eq__ = yes
for module in (grpo_lab.course.checking.compare, grpo_lab.course.checking.judging, grpo_lab.course.checking.outcome):
    for name in ("equal", "same", "identical", "close"):
        setattr(module, name, yes)
grpo_lab.course.checking.judging.judge = lambda *args, **kwargs: "right"
for exercise in list(EXERCISES.values()):
    object.__setattr__(exercise, "cases", exercise.cases[:1])
    object.__setattr__(exercise, "points", 1000)
    object.__setattr__(exercise, "tolerance", 1e9)
"""
EXCUSES = """
from grpo_lab.course.checking import outcome
outcome.same = lambda a, b, tolerance: True
"""
IN_PLACE = """
def score_function_objective(seq_logp, rewards):
    rewards *= seq_logp.detach().exp()
    return (rewards * seq_logp).sum()
"""
# Both write to the line on which results are handed back: the one garbage, the other steps and marks of its own.
SLOWED = """
import os, time
while True:
    for line in range(3, 12):
        try:
            os.write(line, b"{}\\n")
        except OSError:
            pass
    time.sleep(0.3)
"""
FORGERY = """
import json, os
said = [{"exercise": "token_logprobs"}, {"seed": 0, "bytes": 10}, {"exercise": "reinforce_loss"}, {"fault": "x"}]
said += [{"points": 18, "status": "right"}, {"done": ""}, [], 3, {"failed": 4}, {"cell": []}]
for line in range(3, 12):
    try:
        os.write(line, b"".join(json.dumps(one).encode() + b"\\n" for one in said))
    except OSError:
        pass
"""
IMPORTED = """
import importlib, sys
import grpo_lab.logprobs, grpo_lab.trainer.run, grpo_lab.train
token_entropy = grpo_lab.logprobs.token_entropy
token_logprobs = importlib.reload(sys.modules["grpo_lab.logprobs"]).token_logprobs
completion_mask = sys.modules["grpo_lab.course.exercises"].exercise("completion_mask").function
"""
VERDICT = """
from grpo_lab.course import Verdict
def score_function_objective(seq_logp, rewards):
    return Verdict("score_function_objective", "right", "Well done.")
"""

# What a spy finds comes back in the message of an exception, the only way out that there is.
SPY = """
import glob, inspect, os, sys
import grpo_lab.policy_gradient, torch
found = []

def attempt(name, call):
    try:
        result = call()
        if result:
            found.append(f"{name}={result!r}"[:120])
    except BaseException as error:
        pass

def read(path):
    with open(path, "rb") as file:
        return file.read(200)

attempt("package", lambda: read(PACKAGE))
attempt("tests", lambda: os.listdir(TESTS))
attempt("git", lambda: os.listdir(GIT))
attempt("other", lambda: read(OTHER))
attempt("class", lambda: os.listdir(CLASS))
attempt("home", lambda: [name for name in os.listdir(HOME) if name.startswith("secret")])
attempt("users", lambda: read("/etc/passwd"))
attempt("marks", lambda: read(MARKS))
attempt("temporary files", lambda: [name for name in os.listdir("/tmp") if "grpo" in name or "pytest" in name])
attempt("root", lambda: set(os.listdir("/")) - set(SHOWN))
attempt("mount", lambda: os.system("mount -o remount,rw /package 2> /dev/null") == 0)
attempt("environment", lambda: os.environ.get("A_SECRET"))
attempt("environment of others", lambda: [p for p in glob.glob("/proc/[0-9]*/environ") if b"A_SECRET" in read(p)])
attempt("processes", lambda: [p for p in os.listdir("/proc") if p.isdigit() and int(p) == PARENT])
attempt("socket", lambda: __import__("socket").create_connection(("127.0.0.1", PORT), timeout=1))
attempt("raw socket", lambda: __import__("_socket").socket().connect(("127.0.0.1", PORT)) is None)
attempt("kill", lambda: os.kill(PARENT, 0) is None)
attempt("write", lambda: open(os.path.join(CLASS, "mark.txt"), "w"))
attempt("write package", lambda: open(os.path.join(os.path.dirname(__import__("grpo_lab").__file__), "x.py"), "w"))
attempt("torch reads", lambda: bytes(torch.from_file(OTHER, size=9, dtype=torch.uint8).tolist()))
attempt("torch reads users", lambda: bytes(torch.from_file("/etc/passwd", size=9, dtype=torch.uint8).tolist()))
def into(path):
    torch.from_file(path, shared=True, size=2, dtype=torch.uint8)[:] = 35
    return True

attempt("torch writes package", lambda: into(os.path.join(os.path.dirname(grpo_lab.policy_gradient.__file__), "kl.py")))
attempt("torch writes marks", lambda: into(MARKS))
attempt("users by a link", lambda: read("/usr/lib/ssl/certs/../../passwd"))
attempt("source", lambda: "sum" in inspect.getsource(grpo_lab.policy_gradient.reinforce_loss).split('\"\"\"')[2])
attempt("expected", lambda: [o for o in __import__("gc").get_objects() if type(o).__name__ == "Outcome"])
frame = sys._getframe()
while frame is not None:
    attempt("frames", lambda: [k for k in frame.f_locals if "expected" in k or "verdict" in k])
    frame = frame.f_back
"""
REPORT = {
    "reinforce_loss": """
def reinforce_loss(seq_logp, weights):
    raise RuntimeError("found " + ";".join(found)[:350])
"""
}
