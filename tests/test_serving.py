"""A folder of this package behind `transformers serve`: asked by the openai client, and as the judge of a run."""

import pytest

from grpo_lab.chat import reply
from tests.support.scripts import load_script

openai = pytest.importorskip("openai")
pytest.importorskip("fastapi")
pytestmark = pytest.mark.slow
recorder = load_script("notebooks/runs/record_judge.py")


def test_the_openai_client_reads_what_chat_writes_streaming_or_not(tiny, tmp_path):
    questions, policy, hub = ("10+20+30=?", "3+4=?"), tmp_path / "policy", tmp_path / "hub"
    for part in tiny:
        part.save_pretrained(policy)
    with recorder.serving(policy, hub) as url:
        client = openai.OpenAI(base_url=url, api_key="none", timeout=120)
        for question in questions:
            expected = reply(*tiny, question)
            asked = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 64}
            asked["model"] = str(policy)
            whole = client.chat.completions.create(**asked).choices[0]
            assert (whole.message.content, whole.finish_reason) == (expected, "stop")
            pieces = [one.choices[0].delta.content for one in client.chat.completions.create(**asked, stream=True)]
            assert "".join(piece or "" for piece in pieces) == expected and len(pieces) > 4
        with pytest.raises(openai.InternalServerError):
            client.models.list()  # there is no cache of the hub; docs/serving.md says so
        hub.mkdir()
        assert client.models.list().data == []
    with pytest.raises(openai.APIConnectionError):
        client.models.list()


def test_a_served_model_judges_a_run(tmp_path):
    for step in recorder.judged_run(tmp_path):
        assert step["judge/mean"] == pytest.approx(step["think_rate/mean"], abs=0.1) and 0 < step["judge/mean"] < 1
        assert step["judge/frac_none"] < 0.1
