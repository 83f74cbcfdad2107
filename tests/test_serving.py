"""A saved policy, served by `transformers serve`, answers the openai client and is the judge of docs/serving.md."""

import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from grpo_lab.chat import reply
from grpo_lab.rewards.named import find_rewards

if find_spec("openai") is None or find_spec("fastapi") is None:
    pytest.skip("the extra `serve` is not installed", allow_module_level=True)
pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[1] / "docs" / "serving.md"


@contextmanager
def serving(folder, hub):
    """Start a server of this folder on a free local port, yield its address, and stop the server at the end."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub), "NO_PROXY": "127.0.0.1"}
    options = ["serve", str(folder), "--host", "127.0.0.1", "--port", "0", "--device", "cpu"]
    command, log_file = [sys.executable, "-m", "transformers.cli.transformers", *options], folder.with_suffix(".log")
    with log_file.open("wb") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 300
        while not (address := re.search(r"running on (http://127\.0\.0\.1:\d+)", log_file.read_text(errors="replace"))):
            assert server.poll() is None and time.monotonic() < end, log_file.read_text(errors="replace")
            time.sleep(0.1)
        yield f"{address[1]}/v1"
    finally:
        server.kill()
        server.wait()


def test_documented_server_answers_the_openai_client_and_a_judge_reward(tiny, tmp_path, monkeypatch):
    import openai

    questions, policy, hub = ("10+20+30=?", "3+4=?"), tmp_path / "policy", tmp_path / "hub"
    for part in tiny:
        part.save_pretrained(policy)
    with serving(policy, hub) as url:
        client = openai.OpenAI(base_url=url, api_key="none", timeout=120)
        for question in questions:
            expected = reply(*tiny, question)
            request = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 64}
            request["model"] = str(policy)
            choice = client.chat.completions.create(**request).choices[0]
            assert (choice.message.content, choice.finish_reason) == (expected, "stop")
            stream = client.chat.completions.create(**request, stream=True)
            pieces = [chunk.choices[0].delta.content for chunk in stream]
            assert "".join(piece or "" for piece in pieces) == expected and len(pieces) > 4
        with pytest.raises(openai.InternalServerError):
            client.models.list()  # fails without a cache of the hub, as docs/serving.md says
        hub.mkdir()
        assert client.models.list().data == []
        (block,) = re.findall(r"`my_judge.py`.*?```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        file = block.replace("http://127.0.0.1:8001/v1", url).replace('"JUDGE"', repr(str(policy)))
        (tmp_path / "my_judge.py").write_text(file, encoding="utf-8")
        monkeypatch.chdir(tmp_path)
        (judge,) = find_rewards(["my_judge:judge"])
        with pytest.warns(RuntimeWarning, match="judge: 2 of 2 replies were neither yes nor no"):
            assert judge(["7", "8"], prompts=["3+4=?"] * 2, answer=["7"] * 2) == [None, None]
    sys.modules.pop("my_judge")
    with pytest.raises(openai.APIConnectionError):
        client.models.list()
