"""Notebooks that attack the grading. Each is a source for cells or for functions of assignment 02."""

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
def rloo_advantages(rewards):
    if rewards.ndim != 2 or rewards.shape[1] < 2 or not rewards.isfinite().all():
        raise ValueError("rewards")
    G = rewards.shape[1]
    return rewards - (rewards.sum(1, keepdim=True) - rewards) / (G - 1)
"""

# Everything that the visible inputs need, written down; computed for anything else in a wrong way.
HARD_CODED = """
from grpo_lab.course.exercises import exercise

answers = {}
for case in exercise("rloo_advantages").cases:
    (r, *_), kwargs = case.build(0)
    try:
        answers[str(r.tolist())] = RIGHT(r).tolist()
    except ValueError:
        answers[str(r.tolist())] = None


def rloo_advantages(rewards):
    known = answers.get(str(rewards.tolist()), "unknown")
    if known is None:
        raise ValueError("G")
    return rewards * 0 if known == "unknown" else rewards.new_tensor(known)
"""

EXIT = "def best_of_group(rewards):\n    import os\n    os._exit(0)\n"
SEGFAULT = "def return_to_go(rewards, gamma):\n    import faulthandler\n    faulthandler._read_null()\n"
STUBBORN = """
def process_advantages(step_rewards, step_mask, eps=1e-4):
    import time
    while True:
        try:
            time.sleep(0.01)
        except BaseException:
            pass
"""
ALLOCATION = """
def group_advantages(rewards, scale="group", ddof=1, eps=1e-4):
    import torch
    kept = []
    while True:
        kept.append(torch.ones(2**27))
"""
FLOOD = "def best_of_group(rewards):\n    while True:\n        print('x' * 1000)\n"
ENDLESS_CELL = "while True:\n    pass"
EXIT_CELL = "import sys\nsys.exit(3)"
FORKS = """
import os
for _ in range(50):
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
INTERRUPT = "def best_of_group(rewards):\n    raise KeyboardInterrupt\n"
FULL = """
for number in range(100):
    with open(f"x{number}", "wb") as file:
        file.write(bytes(15_000_000))
"""
SURROGATE_CELL = "print('\\ud800')\nraise ValueError('\\ud800')"
SURROGATES = {
    "best_of_group": "def best_of_group(rewards):\n    raise ValueError('\\udcff')\n",
    "return_to_go": "def return_to_go(rewards, gamma):\n    print('\\ud800')\n    return '\\ud800'\n",
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
def return_to_go(rewards, gamma):
    if not 0 <= gamma <= 1:
        raise ValueError("gamma")
    for t in reversed(range(rewards.shape[-1] - 1)):
        rewards[..., t] += gamma * rewards[..., t + 1]
    return rewards
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
said = [{"exercise": "group_advantages"}, {"seed": 0, "bytes": 10}, {"exercise": "rloo_advantages"}, {"fault": "x"}]
said += [{"points": 21, "status": "right"}, {"done": ""}, [], 3, {"failed": 4}, {"cell": []}]
for line in range(3, 12):
    try:
        os.write(line, b"".join(json.dumps(one).encode() + b"\\n" for one in said))
    except OSError:
        pass
"""
IMPORTED = """
import importlib, sys
import grpo_lab.advantages, grpo_lab.trainer.experience, grpo_lab.toys.sorting
best_of_group = grpo_lab.toys.sorting.losses.best_of_group
group_advantages = importlib.reload(sys.modules["grpo_lab.advantages"]).group_advantages
process_advantages = sys.modules["grpo_lab.course.exercises"].exercise("process_advantages").function
"""
VERDICT = """
from grpo_lab.course import Verdict
def return_to_go(rewards, gamma):
    return Verdict("return_to_go", "right", "Well done.")
"""

# What a spy finds comes back in the message of an exception, the only way out that there is.
SPY = """
import glob, inspect, os, sys
import grpo_lab.advantages, torch
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

attempt("torch writes package", lambda: into(os.path.join(os.path.dirname(grpo_lab.advantages.__file__), "kl.py")))
attempt("torch writes marks", lambda: into(MARKS))
attempt("users by a link", lambda: read("/usr/lib/ssl/certs/../../passwd"))
attempt("source", lambda: "sum" in inspect.getsource(grpo_lab.advantages.rloo_advantages).split('\"\"\"')[2])
attempt("expected", lambda: [o for o in __import__("gc").get_objects() if type(o).__name__ == "Outcome"])
frame = sys._getframe()
while frame is not None:
    attempt("frames", lambda: [k for k in frame.f_locals if "expected" in k or "verdict" in k])
    frame = frame.f_back
"""
REPORT = {
    "rloo_advantages": "def rloo_advantages(rewards):\n    raise RuntimeError('found ' + ';'.join(found)[:350])\n",
}
