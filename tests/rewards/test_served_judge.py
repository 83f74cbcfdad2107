"""A judge behind a server, here a small one of the standard library: what is asked, how often, and what goes wrong."""

import json
import re
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from grpo_lab import train as command
from grpo_lab.rewards import JUDGE_TEMPLATE, score_completions, served_judge
from grpo_lab.rewards.named import check_columns, find_rewards
from grpo_lab.rewards.served_judge import EXAMPLES
from tests.support.refused import refused

openai = pytest.importorskip("openai")
PROMPTS, ANSWER = ["q", "q", "q", "r"], ["1", "1", "1", "2"]


def completion(text, finish_reason="stop"):
    choice = {"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text}}
    return 200, {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}


class Server(ThreadingHTTPServer):
    """It answers the last message by `answer`, from its text to a status and a body; `asked` holds the requests."""

    daemon_threads = True

    def __init__(self, answer=lambda text: completion("yes")):
        self.answer, self.asked = answer, []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def name(self):
        return f"judge:http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body | {"path": self.path, "key": self.headers["authorization"]})
        status, said = self.server.answer(body["messages"][-1]["content"])
        data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-type", "text/html" if isinstance(said, str) else "application/json")
        self.send_header("content-length", str(len(data)))
        self.send_header("retry-after-ms", "1")  # the client waits half a second otherwise
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextmanager
def serving(*answer):
    with Server(*answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def test_it_is_asked_with_examples_several_at_once_and_each_question_once():
    together = threading.Barrier(2, timeout=60)

    def answer(text):
        if "judged" in text and "\nq\n" in text:
            together.wait()  # of two different completions of q: one after the other, they would never meet
        return completion("是。" if text.count("right") else "不正确")

    with serving(answer) as server:
        (judge,) = find_rewards([f"{server.name}#some/model"])
        assert judge(["right", "wrong", "right", "wrong"], prompts=PROMPTS, answer=ANSWER) == [1.0, 0.0, 1.0, 0.0]
        assert judge(["wrong", "right", "right"], prompts=PROMPTS[:3], answer=["1", "1", None]) == [0.0, 1.0, None]
    first, *rest = server.asked
    assert len(rest) == 3, "two of q and one of r"
    assert first["key"] == "Bearer none" and first["path"] == "/v1/chat/completions" and first["temperature"] == 0
    assert {one["model"] for one in server.asked} == {"some/model"}
    shown = []
    for x, a, y, verdict in EXAMPLES:
        question = JUDGE_TEMPLATE.format(prompt=x, answer=a, completion=y)
        shown += [{"role": "user", "content": question}, {"role": "assistant", "content": verdict}]
    assert all(one["messages"][:-1] == shown for one in rest) and {example[3] for example in EXAMPLES} == {"yes", "no"}
    wanted = {JUDGE_TEMPLATE.format(prompt="q", answer="1", completion=text) for text in ("right", "wrong")}
    assert wanted < {one["messages"][-1]["content"] for one in rest}, "in whichever order the two arrive"


def test_no_verdict_is_no_reward_and_is_counted():
    replies = {
        "maybe": completion("maybe"), "long": completion("<think>yes, no, yes", "length"), "none": completion(None),
        "filtered": (400, {"error": "not to be talked about"}), "unfit": (422, {}),
    }  # fmt: skip
    with serving(lambda text: next((r for word, r in replies.items() if word in text), completion("no"))) as server:
        judge = find_rewards([server.name])
        texts = [*replies, "fine"]
        with pytest.warns(RuntimeWarning, match="judge: 5 of 6 replies were neither yes nor no, which gives no reward"):
            assert judge[0](texts, prompts=["q"] * 6, answer=["1"] * 6) == [None] * 5 + [0.0]
        assert "model" not in server.asked[0], "none was named"


def test_a_server_that_fails_is_asked_again_and_one_that_goes_on_failing_ends_the_run():
    failures = iter([503, 429])

    def answer(text):
        status = next(failures, 200) if "again" in text else 200
        return completion("yes") if status == 200 else (status, {"error": "busy"})

    with serving(answer) as server:
        judge = find_rewards([server.name])
        assert judge[0](["again"], prompts=["q"], answer=["1"]) == [1.0]
        assert len(server.asked) == 1 + 3
        server.answer = lambda text: (500, {"error": "broken"})
        with pytest.raises(
            RuntimeError, match="reward function 'judge' failed: InputError: .*does not take a question .500, .*broken"
        ):
            score_completions(judge, ["q"], ["other"], [[1]], {"answer": ["1"]})
        assert len(server.asked) == 1 + 3 + served_judge.ATTEMPTS


def test_waiting_ends(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(served_judge, "SECONDS", 0.2)
    with serving(lambda text: completion(str(released.wait(60)))) as server:
        try:
            with pytest.raises(ConnectionError, match=r"which does not answer \(attempts: 1, each of up to 0.2 s\)"):
                find_rewards([server.name])
        finally:
            released.set()


def test_an_address_that_is_none_is_named():
    for url in ("127.0.0.1:8000", "http:/x/v1", "ftp://host/v1", "http://a:b@host/v1", "http://host/v1?x=1"):
        with pytest.raises(ValueError, match=r"reward_funcs has 'judge:.*'; expected judge:http://HOST:PORT/v1, with"):
            find_rewards([f"judge:{url}"])


def test_what_a_judge_needs_is_said_before_a_run(monkeypatch, tmp_path):
    with serving() as server:
        check_columns([server.name], [{"prompt": "q", "answer": "1"}])
        with pytest.raises(ValueError, match="which needs the column 'answer'; row 0 lacks it"):
            check_columns([server.name], [{"prompt": "q"}])
        server.answer = lambda text: (404, {"error": "no model of this name"})
        with pytest.raises(ValueError, match=r"does not take a question \(404, .*no model of this name.*#MODEL where"):
            find_rewards([f"{server.name}#other"])
        server.answer = lambda text: (200, "<html>a page</html>")
        with pytest.raises(
            ValueError, match=r"which answers '<html>a page.*; expected a chat .* does the URL lack /v1"
        ):
            find_rewards([server.name.removesuffix("/v1")])
    gone = f"{server.name}/gone"
    error = refused(command.main, "--output_dir", str(tmp_path / "run"), "--reward_funcs", gone)
    assert f"--reward_funcs has '{gone}', which does not answer" in error and not (tmp_path / "run").exists()
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ImportError, match=r'it needs `pip install "grpo-lab\[serve\]"`'):
        find_rewards([f"{gone}/2"])


def test_a_module_of_ones_own_may_be_called_judge(tmp_path, monkeypatch):
    (tmp_path / "judge.py").write_text("def mine(completions, **kwargs): return [3.0]", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert find_rewards(["judge:mine"])[0]([""]) == [3.0]
    monkeypatch.delitem(sys.modules, "judge")


@pytest.mark.slow
def test_a_run_counts_refusals_and_goes_on_with_its_model_wherever_it_is_served(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JUDGE_API_KEY", "secret")
    monkeypatch.setattr(command, "HELD_OUT", 2)
    words = [
        *("--output_dir", str(tmp_path / "run"), "--num_generations", "4", "--generation_batch_size", "8"),
        *("--max_completion_length", "8", "--disable_tqdm", "true", "--task", "short-sums", "--eval_steps", "1"),
    ]

    def run(name, steps, *more):
        return command.main([*words, "--max_steps", str(steps), "--reward_funcs", "accuracy", name, *more])

    with serving(lambda text: completion("yes" if "+" in text.split("judged")[1] else "?")) as server, serving() as new:
        with pytest.warns(RuntimeWarning, match="neither yes nor no"):
            assert run(f"{server.name}#a", 1) == 0
        assert run(f"{new.name}#a", 2, "--resume_from_checkpoint", "true") == 0
        assert "Bearer secret" in {one["key"] for one in server.asked}
        assert run(f"{new.name}#b", 3, "--resume_from_checkpoint", "true") == 2
        assert re.search("judge, .* was .*the model 'a'.* is .*the model 'b'", capsys.readouterr().err)
    first, second = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert 0 < first["rewards/judge/frac_none"] <= 1 and first["eval/rewards/judge/frac_none"] > 0
    assert first["rewards/judge/mean"] in (None, 1.0)
    assert second["rewards/judge/mean"] == 1.0 and "rewards/judge/frac_none" not in second
    assert not any("accuracy_reward/frac_none" in key for key in first)
