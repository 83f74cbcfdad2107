"""A record names its machine and the versions of the packages, and is written as readable JSON."""

import json
import platform
from importlib.metadata import version

import torch

from grpo_lab.bench import record


def test_the_machine_names_processor_device_and_versions(monkeypatch):
    monkeypatch.setattr(record, "installed_version", {"trl": "1.16.0", "liger-kernel": "-", "torchao": "0.1"}.get)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    expected = {
        "platform": platform.platform(terse=True),
        "processor": platform.machine(),
        "device": "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "trl": "1.16.0",
        "liger-kernel": "-",
        "torchao": "0.1",
    }
    assert record.describe_machine() == expected
    assert record.describe_machine("cuda") == expected | {"device": "NVIDIA H200"}


def test_a_record_is_json_with_a_line_for_each_entry(tmp_path):
    record.write_json(tmp_path / "record.json", {"a": [1], "b": None})
    text = (tmp_path / "record.json").read_text(encoding="utf-8")
    assert text == '{\n "a": [\n  1\n ],\n "b": null\n}\n'
    assert json.loads(text) == {"a": [1], "b": None}
