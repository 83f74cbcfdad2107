# `make lab` to learn; `make check` while you change something, `make test` before you commit it, `make test-all` to prove
# it. Each sets itself up first, and the second time that costs nothing.
#
#   PYTHON=python3.12      which Python makes .venv (the first suitable one on the PATH otherwise)
#   TORCH_BACKEND=cpu      take a small CPU-only torch instead of the default of your system; cu130, auto, ... likewise
#   LAB_ARGS="--no-browser --port 9000"   more options for JupyterLab
#   WORKERS=4              how many processes share the tests (`make test`: a process a core, from 2 to 8; else 2)
#   LESSON_LANG=zh_CN      which lessons `make lab` opens, if not those of the machine's language
#   ONLY="03 05"           which notebooks `make notebooks` builds, if not all
#   MINUTES=60             how long `make gpu-record` may take

# The lessons open in Chinese where the machine speaks Chinese, or with LESSON_LANG=zh_CN; in English with LESSON_LANG=en.
CHINESE := $(filter zh%,$(firstword $(LESSON_LANG) $(GRPO_LAB_LANG) $(LC_ALL) $(LC_MESSAGES) $(LANG)))
FIRST_NOTEBOOK := notebooks/$(if $(CHINESE),zh/)00_start_here.ipynb
SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	"$$p" -c '$(SUITABLE)' >/dev/null 2>&1 && { echo "$$p"; break; }; done)
TORCH_BACKEND ?=
WORKERS ?=
MINUTES ?= 60
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PY := $(BIN)/python
STAMP := .venv/.setup-done
DEV := .venv/.dev-done
# `make test` runs a process a core; the long proofs of `make test-all` may need gigabytes each, so two run at a time.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
A_PROCESS_A_CORE = $(shell n=$(CORES); [ $$n -lt 2 ] && n=2; [ $$n -gt 8 ] && n=8; echo $$n)
DEFAULT_WORKERS = 2
test: DEFAULT_WORKERS = $(A_PROCESS_A_CORE)
# Handed out two at a time, so that the long ones, which come first (tests/conftest.py), are shared evenly.
PYTEST = $(PY) -m pytest -n $(or $(WORKERS),$(DEFAULT_WORKERS)) --maxschedchunk 2 --ignore notebooks/assignments --ignore notebooks/zh
NBMAKE = -p nbmake.pytest_plugin --nbmake --nbmake-timeout 300
# In forks the notebooks share one import of everything; nbmake, a kernel for each, is what `make test-all` and CI run.
SYSTEM ?= $(shell uname)
NOTEBOOKS = $(if $(filter Linux,$(SYSTEM)),-p tests.notebooks.forked,$(NBMAKE))
# JupyterLab refuses to start for root, which is who you are in most containers and on rented machines.
AS_ROOT := $(if $(filter 0,$(shell id -u 2>/dev/null)),--allow-root)

.PHONY: help owner setup dev lab check test test-all lint types mutants notebooks site slides doctor format lock gpu gpu-test gpu-bench gpu-record
.DEFAULT_GOAL := help

help:
	@echo "make lab        set up, then open JupyterLab on the first notebook"
	@echo "make check      set up, then lint, types, and the tests of what you changed, in about half a minute"
	@echo "make test       lint, types, tests and every notebook, in a few minutes"
	@echo "make test-all   the same and the long proofs: mutants, browser, hostile submissions, ... in up to half an hour"
	@echo "make setup      set up only: .venv with the exact versions of requirements.lock"
	@echo "make dev        the same and what the tests need: requirements-dev.lock"
	@echo "make doctor     say what this machine can do, and what to mend"
	@echo "make mutants    plant known mistakes in the code, one by one: does a test notice each?"
	@echo "make notebooks  build the notebooks from notebooks/text, executed"
	@echo "make site       write the web site to build/site, from the notebooks as they are"
	@echo "make slides     write the slides of four lectures to build/slides, with the figures of the lessons"
	@echo "make gpu        on an NVIDIA GPU: its tests, time and memory beside TRL's, the recorded runs of notebook 08"
	@echo "                (gpu-test, gpu-bench and gpu-record are the three by themselves)"
	@echo "make format     put the code into the project's form"
	@echo "make lock       renew requirements.lock and requirements-dev.lock"

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11 to 3.14 on the PATH. Install one, or name it: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c '$(SUITABLE)' || { echo "PYTHON=$(PYTHON) is not a Python 3.11 to 3.14, or does not run. Name another: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(PY) || "$(PYTHON)" -m venv .venv
ifneq ($(TORCH_BACKEND),)
	$(PY) -m pip install --disable-pip-version-check uv
	$(PY) -m uv pip install --python $(PY) --torch-backend=$(TORCH_BACKEND) -c requirements.lock torch || \
		{ echo "This torch comes from PyTorch's own site, which your machine or mirror does not reach: take plain \`make lab\`" >&2; exit 1; }
endif
	@echo "pip shows each download with its size and the time left (a slow line: see docs/install.md);"
	@echo "after the last one it installs for a minute or two without a word."
	$(PY) -m pip install --disable-pip-version-check -r requirements.lock
	$(PY) -m pip install --disable-pip-version-check --no-deps --no-build-isolation -e .
	@# A real language model for notebook 07b. Offline this says so and succeeds; a file that is not what it should be stops.
	$(PY) -m grpo_lab.models get smollm2 --optional
	@# A cell of a lesson that is run before the first one says which cell to run.
	@$(PY) -m grpo_lab.teaching.kernel_start >/dev/null
	@# Else JupyterLab asks in a corner of the first lesson whether it may fetch news.
	@$(PY) -m jupyter labextension disable @jupyterlab/apputils-extension:announcements >/dev/null 2>&1
	@touch $@

dev: $(DEV)

$(DEV): $(STAMP) requirements-dev.lock
	$(PY) -m pip install --disable-pip-version-check -r requirements-dev.lock
	@touch $@

lab: $(STAMP)
	$(PY) -m jupyterlab $(AS_ROOT) --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/$(FIRST_NOTEBOOK) $(LAB_ARGS)

# One thread a process: on few cores, thread pools that compete make everything slower and no result different.
check test test-all mutants: export OMP_NUM_THREADS = 1
check test test-all mutants: export GRPO_LAB_PROFILE = fast
# What pytest makes of the tests is kept: to make it anew takes each process six seconds.
check test test-all mutants: export PYTHONDONTWRITEBYTECODE =
check: lint types
	$(PY) -m tests.changed

# Notebook 07b meets SmolLM2 in test-all only: here it runs as it does for a reader who has not fetched the model.
# mypy reads on one core, so it runs beside the tests, and what it says is printed after them.
test: lint
	$(PY) -m mypy >.venv/types.txt 2>&1 & types=$$!; \
	GRPO_LAB_CACHE="$(CURDIR)/.venv/no-models" $(PYTEST) $(NOTEBOOKS) -m "not slow" tests notebooks; tests=$$?; \
	wait $$types; types=$$?; echo mypy: && cat .venv/types.txt; exit $$((tests || types))

# The notebooks at their full length, as readers run them.
test-all: lint types
	$(PYTEST) tests; tested=$$?; GRPO_LAB_PROFILE=full $(PYTEST) $(NBMAKE) notebooks && exit $$tested

mutants: $(DEV)
	$(PY) -m tests.mutants

notebooks: $(DEV)
	$(PY) notebooks/build.py $(ONLY)

# A broken link is an error.
site: $(DEV)
	$(PY) -m sphinx -q -a -E -W --keep-going -d build/doctrees -c docs . build/site

slides: $(STAMP)
	$(PY) docs/teaching/slides.py

# With -k the other parts run if one fails, because a GPU is rented by the minute.
gpu: $(STAMP)
	$(MAKE) -k gpu-test gpu-bench gpu-record

gpu-test: $(DEV)
	$(PY) -m pytest tests/gpu

gpu-bench: $(DEV)
	$(PY) -m grpo_lab.bench --against trl --model smollm2 --precision fp32-master --device cuda --steps 10 \
		--json notebooks/runs/smollm2_bench.json

gpu-record: $(STAMP)
	$(PY) notebooks/runs/record_qwen_modes.py
	$(PY) notebooks/runs/record_qwen.py --minutes $(MINUTES)

lint: $(DEV)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(DEV)
	$(PY) -m mypy

format: $(DEV)
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

doctor: $(STAMP)
	$(PY) -m grpo_lab.doctor

# Keeps the versions that are locked already; UPGRADE=--upgrade takes the newest that pyproject.toml allows. The readers'
# lock holds a subset of the developers', in the same versions.
COMPILE = $(PY) -m uv pip compile pyproject.toml --universal --python-version 3.11 --fork-strategy fewest \
	--no-annotate --no-emit-index-url --custom-compile-command "make lock"
lock: $(DEV)
	$(PY) -m pip install --disable-pip-version-check uv
	$(COMPILE) --extra dev $(UPGRADE) -o requirements-dev.lock
	$(COMPILE) --extra notebooks $(UPGRADE) -c requirements-dev.lock -o requirements.lock

# Once, by whoever publishes it: `make owner OWNER=you` writes the repository's owner into every address.
owner:
	@test "$(OWNER)" != "" || { echo "make owner OWNER=you" >&2; exit 1; }
	@$(PY) -c "import pathlib, subprocess; \
	files = subprocess.run(['git', 'grep', '-lE', 'OWNER([.]github[.]io)?/grpo-lab'], capture_output=True, text=True).stdout.split(); \
	[p.write_bytes(p.read_bytes().replace(b'OWNER/grpo-lab', b'$(OWNER)/grpo-lab').replace(b'OWNER.github.io', b'$(OWNER).github.io')) \
	for p in map(pathlib.Path, files) if p.name != 'Makefile']; print(*files, sep='\n')"
