"""Does everything work here, and if not, what is to be done? `doctor()`, or `python -m grpo_lab.doctor` in a shell.

Every check is a function of a `Machine`, so that the tests can make one up: a card behind a torch without CUDA, an old
Python, a full disk. "ok" needs nothing from you, "warn" costs you something, "fail" keeps the notebooks from running.
"""

from collections.abc import Callable

from grpo_lab.doctor.machine import Machine, inspect_machine
from grpo_lab.doctor.report import Check, Report

ADAM_FP32_GIB = 7.4  # fp32 weights, gradients and Adam moments of Qwen2-0.5B
ROOMY_CARD_GIB = 14.0  # what a 16 GB card reports, less what its driver keeps
SMALL_CARD_GIB = 7.0  # and one of 8 GB


def doctor(machine: Machine | None = None) -> Report:
    """Look at this machine (or at one that is made up) and say what works, what does not, and what to do about it."""
    machine = machine or inspect_machine()
    return Report(found for check in CHECKS if (found := check(machine)))


def check_python(m: Machine) -> Check:
    version = ".".join(map(str, m.python))
    found = f"{version} at {m.python_path}"
    if m.python < (3, 11):
        return Check(
            "Python",
            "fail",
            found,
            "Too old. Install Python 3.11, 3.12 or 3.13, delete .venv and run `make setup PYTHON=python3.12` again.",
        )
    if m.python >= (3, 14):
        return Check(
            "Python", "warn", found, "Newer than what is tested (3.11 to 3.13). If something breaks, take 3.13."
        )
    return Check("Python", "ok", found)


def check_environment(m: Machine) -> Check:
    if not m.jupyter:
        return Check(
            "environment",
            "warn",
            f"{m.environment}, without Jupyter's kernel",
            f"Enough for a shell. For the notebooks: `{m.python_command} -m pip install -r requirements.lock`.",
        )
    if m.wrong_venv:
        return Check(
            "environment",
            "warn",
            f"this Python is not the one that was set up for the course in {m.wrong_venv}",
            "Stop Jupyter and start it with `make lab`; in VS Code, choose the kernel of .venv.",
        )
    names = {"venv": "a virtual environment", "conda": "a conda environment", "none": "no environment of its own"}
    return Check("environment", "ok", names[m.environment])


def check_packages(m: Machine) -> Check:
    again = (
        "`conda env update -f environment.yml`"
        if m.environment == "conda"
        else f"`{m.python_command} -m pip install -r requirements.lock`"
    )
    if not m.installed:
        return Check(
            "packages",
            "warn",
            "grpo_lab runs from its folder and is not installed, so versions were not checked",
            f"`{m.python_command} -m pip install --no-deps -e .`",
        )
    if m.missing:
        return Check("packages", "fail", f"missing: {', '.join(m.missing)}", f"Install them: {again}.")
    if m.unfit:
        return Check("packages", "warn", "; ".join(m.unfit), f"Untested with these versions. Go back: {again}.")
    return Check("packages", "ok", "all within the bounds that are tested")


def check_torch(m: Machine) -> Check:
    if m.torch_error:
        remedy = f"Install it anew: `{m.python_command} -m pip install --force-reinstall -r requirements.lock`."
        if m.system == "Windows":
            remedy = (
                "Install Microsoft's Visual C++ Redistributable (x64), then start again. If that is not it: " + remedy
            )
        return Check("torch", "fail", f"installed, but does not load: {m.torch_error}", remedy)
    if m.torch is None:
        return Check("torch", "fail", "not installed", f"`{m.python_command} -m pip install -r requirements.lock`")
    return Check("torch", "ok", f"{m.torch}, built for {'CUDA ' + m.torch_cuda if m.torch_cuda else 'the CPU'}")


def check_transformers(m: Machine) -> Check:
    if m.transformers is None:
        return Check(
            "transformers", "fail", "does not import", f"`{m.python_command} -m pip install -r requirements.lock`"
        )
    return Check("transformers", "ok", m.transformers)


def check_card(m: Machine) -> Check:
    if m.card is None:
        return Check("NVIDIA card", "ok", "none: everything runs on the CPU but the training of Qwen2-0.5B")
    if m.cuda_works:
        return Check("NVIDIA card", "ok", f"{m.card.name}, used by torch through CUDA {m.torch_cuda}")
    if m.torch_cuda is None:
        return Check(
            "NVIDIA card",
            "warn",
            f"an NVIDIA card is present ({m.card.name}) but this torch has no CUDA: it would stay idle",
            _torch_with_cuda(m),
        )
    if m.hidden_by is not None:
        return Check(
            "NVIDIA card",
            "warn",
            f"{m.card.name} is hidden by CUDA_VISIBLE_DEVICES={m.hidden_by!r}",
            "Unset CUDA_VISIBLE_DEVICES and start again.",
        )
    driver = f"driver {m.card.driver}" if m.card.driver else "its driver"
    return Check(
        "NVIDIA card",
        "warn",
        f"{m.card.name} is present, but torch cannot use it: {driver} does not serve CUDA {m.torch_cuda}",
        f"Update the NVIDIA driver and restart the machine, or take a torch for your driver: {_torch_with_cuda(m)}",
    )


def _torch_with_cuda(m: Machine) -> str:
    if m.environment == "conda":
        return "`conda install -c conda-forge pytorch-gpu`, then restart the kernel."
    version, python = (m.torch or "").split("+")[0], m.python_command
    return (
        f"`{python} -m pip install uv`, then `{python} -m uv pip install --python {python} "
        f"--reinstall-package torch --torch-backend=auto torch=={version}`, then restart the kernel."
    )


def check_precision(m: Machine) -> Check:
    if not m.cuda_works:
        return Check("precision", "ok", "fp32 on the CPU")
    if m.native_bf16:
        return Check("precision", "ok", f"bf16 runs natively on {m.card.name}")
    return Check(
        "precision",
        "warn",
        f"{m.card.name} has no bf16 of its own; it trains float32 weights with fp16 arithmetic, 16 bytes a parameter",
        "Nothing to do: `load_policy` takes that mode by itself. Qwen2-0.5B takes 7.4 GiB in it, without activations.",
    )


def check_card_memory(m: Machine) -> Check | None:
    if m.card is None or m.card.memory_gib is None:
        return None
    found = f"{m.card.memory_gib:.1f} GiB"
    if m.card.memory_gib >= ROOMY_CARD_GIB:
        return Check("card memory", "ok", f"{found}: room for training all of Qwen2-0.5B, in every mode")
    if m.card.memory_gib >= SMALL_CARD_GIB and m.native_bf16:
        return Check(
            "card memory",
            "ok",
            f'{found}: all of Qwen2-0.5B trains in the mode "bf16" with gradient_checkpointing=True; '
            f"`{m.python_command} -m grpo_lab.memory --shape qwen2-0.5b` plans it",
        )
    return Check(
        "card memory",
        "warn",
        f"{found}: without bf16, weights, gradients and Adam of Qwen2-0.5B take {ADAM_FP32_GIB} GiB, and more comes "
        f'on top; the mode "bf16" takes 3 GiB, and needs a card that has bf16 and {SMALL_CARD_GIB:.0f} GiB or more',
        "Sampling and evaluating Qwen2-0.5B fit. Train the tiny model here, or take a larger or newer card.",
    )


def check_memory(m: Machine) -> Check:
    if m.ram_gib is None:
        return Check("memory", "ok", "could not be measured")
    if m.ram_gib < 3.5:
        return Check(
            "memory", "warn", f"{m.ram_gib:.1f} GiB", "Tight. Close other programs and run one notebook at a time."
        )
    return Check("memory", "ok", f"{m.ram_gib:.1f} GiB")


def check_disk(m: Machine) -> Check:
    if m.disk_gib is not None and m.disk_gib < 2:
        return Check(
            "disk",
            "warn",
            f"{m.disk_gib:.1f} GiB free",
            "Free some: a checkpoint of Qwen2-0.5B with its state takes 8 GiB.",
        )
    return Check("disk", "ok", "could not be measured" if m.disk_gib is None else f"{m.disk_gib:.0f} GiB free")


def check_cpu(m: Machine) -> Check:
    found = f"{m.cpus} cores, {m.torch_threads} torch thread{'' if m.torch_threads == 1 else 's'}"
    if m.cpus < 2:
        return Check(
            "CPU", "warn", found, "The minutes in the notebooks are for two cores: expect about twice as long."
        )
    return Check("CPU", "ok", found)


def check_tiny(m: Machine) -> Check:
    if m.tiny_error:
        return Check("tiny model", "fail", "does not load", m.tiny_error)
    return Check("tiny model", "ok", f"loads: {m.tiny}")


def check_qwen2(m: Machine) -> Check:
    if m.qwen2:
        return Check("Qwen2-0.5B", "ok", f"on this machine, in {m.qwen2}")
    return Check(
        "Qwen2-0.5B",
        "ok",
        "not on this machine; every notebook does without",
        'When you want it (1 GB): `load_policy("Qwen/Qwen2-0.5B-Instruct")` fetches it from Hugging Face, '
        "`modelscope download --model Qwen/Qwen2-0.5B-Instruct` from ModelScope.",
    )


CHECKS: tuple[Callable[[Machine], Check | None], ...] = (
    check_python,
    check_environment,
    check_packages,
    check_torch,
    check_transformers,
    check_card,
    check_precision,
    check_card_memory,
    check_memory,
    check_disk,
    check_cpu,
    check_tiny,
    check_qwen2,
)


def main() -> int:
    report = doctor()
    print(report)
    return 0 if report.healthy else 1
