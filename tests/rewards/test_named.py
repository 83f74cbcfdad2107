"""Rewards by name: the rewards of the package, and your own."""

import importlib
import sys

import pytest

from grpo_lab import rewards
from grpo_lab.rewards.named import REWARD_FUNCTIONS, any_reads_tags, check_reward_columns, find_rewards, short_name

FILES = {
    "mine": """
import helper_of_mine
def short(completions, **kwargs):
    return [helper_of_mine.ONE / (1 + len(text)) for text in completions]
class Kept:
    @staticmethod
    def always(completions, **kwargs):
        return [1.0] * len(completions)
LIMIT = 3
""",
    "helper_of_mine": "ONE = 1.0",
    "broken": "1 / 0",
    "leaves": "raise SystemExit(3)",
    "package/inner": "def half(completions, **k): return [0.5]",
    "sub folder/apart": "import beside\ndef count(completions, **k): return [beside.TWO]",
    "sub folder/beside": "TWO = 2.0",
    "unread": "a = 1\ndef (",
    "json": "def f(completions): return [0.0]",
    "colorsys": "def mine(completions): return [2.0]",
}


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    """A current folder with your own modules, one of them named as in the standard library; removed after the test."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    modules = [*(name.replace("/", ".") for name in FILES if name != "json"), "package", "apart", "beside"]
    hidden_modules = {name: sys.modules.pop(name) for name in modules if name in sys.modules}
    yield tmp_path
    importlib.invalidate_caches()
    for name in modules:
        sys.modules.pop(name, None)
    sys.modules.update(hidden_modules)


def test_every_name_is_a_function_of_the_package_and_its_own_name_will_do_too():
    for name, function in REWARD_FUNCTIONS.items():
        assert find_rewards([name]) == find_rewards([function.__name__]) == [function]
        assert short_name(function.__name__) == name
    public = {name for name in vars(rewards) if name.endswith("_reward")} - {"judge_reward", "reward_model_reward"}
    assert public <= {function.__name__ for function in REWARD_FUNCTIONS.values()}, (
        "a reward without a name for the shell"
    )


def test_find_rewards_mixes_users_functions_with_those_of_the_package(workdir):
    search_path = list(sys.path)
    functions = find_rewards(["mine:short", "accuracy", "mine:Kept.always", "package.inner:half", "colorsys:mine"])
    assert functions[0](["abc"]) == [0.25]
    assert functions[1] is rewards.accuracy_reward
    assert functions[2](["", ""]) == [1.0, 1.0]
    assert functions[3]([""]) == [0.5]
    assert sys.path == search_path
    assert functions[4]([""]) == [2.0], "the current folder comes before what is installed"
    assert rewards.reward_names(functions) == ["short", "accuracy_reward", "always", "half", "mine"]


def test_a_file_is_named_by_its_path_with_what_stands_beside_it_and_is_loaded_once(workdir, tmp_path_factory):
    search_path = list(sys.path)
    paths = ["sub folder/apart.py:count", str(workdir / "sub folder" / "apart.py") + ":count"]
    functions = [find_rewards([path])[0] for path in [*paths, "mine.py:short", "mine:short"]]
    assert functions[0]([""]) == [2.0]
    assert functions[0] is functions[1]
    assert functions[2] is functions[3]
    assert find_rewards(["mine.py:Kept.always"])[0](["", ""]) == [1.0, 1.0]
    assert sys.path == search_path
    another_folder = tmp_path_factory.mktemp("other")
    (another_folder / "apart.py").write_text("def count(completions, **k): return [3.0]", encoding="utf-8")
    assert find_rewards([f"{another_folder / 'apart.py'}:count"])[0]([""]) == [3.0], "a file of the same name elsewhere"


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("acuracy", ValueError, "reward_funcs has 'acuracy'; expected accuracy, math, number, last, format"),
        ("mine:", ValueError, "expected module:function, such as my_rewards:brief, or FILE:function, such as my_rewar"),
        ("mine.py:", ValueError, "expected module:function, such as"),
        ("nowhere.py:short", FileNotFoundError, "reward_funcs has 'nowhere.py:short'; there is no such file in "),
        ("broken.py:f", ImportError, "cannot be imported from .*: ZeroDivisionError: division by zero"),
        ("unread.py:f", ImportError, r"SyntaxError: .*\(unread.py, line 2\)"),
        ("mine.py:shrt", ImportError, "module 'mine' has no attribute 'shrt'"),
        ("nowhere:short", ImportError, "cannot be imported from .*: ModuleNotFoundError: .*'nowhere'"),
        ("broken:f", ImportError, "cannot be imported from .*: ZeroDivisionError: division by zero"),
        ("leaves:f", ImportError, "cannot be imported from .*: SystemExit: 3"),
        ("mine:shrt", ImportError, "module 'mine' has no attribute 'shrt'"),
        ("mine:LIMIT", TypeError, "'mine:LIMIT', which is int 3; expected a function"),
        ("mine:Kept", TypeError, "'mine:Kept', which is a class; expected a function"),
        ("accuracy_reward", ValueError, "'accuracy' twice; expected each once"),
    ],
)
def test_find_rewards_names_missing_files_modules_and_functions(workdir, name, kind, message):
    with pytest.raises(kind, match=message):
        find_rewards(["accuracy", name])


def test_any_reads_tags_is_true_for_rewards_that_read_tags():
    assert all(
        any_reads_tags([name])
        for name in REWARD_FUNCTIONS
        if name not in ("contains", "last", "code", "pass_rate", "sql")
    )
    assert not any_reads_tags(["contains", "last", "mine:short"])
    assert any_reads_tags(["mine:short", "format_reward"])


OWN_REWARDS = """
def short(completions, **kwargs):
    return [1 / (1 + len(text)) for text in completions]
def cost(completions, price, answer=None):
    return [-1.0] * len(completions)
"""


@pytest.fixture
def own_rewards(tmp_path, monkeypatch):
    """A current folder with a module `own_rewards`, which is removed after the test."""
    (tmp_path / "own_rewards.py").write_text(OWN_REWARDS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("own_rewards", None)


ROWS = [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}]


def with_answer(value):
    return [ROWS[0], ROWS[1] | {"answer": value}]


def test_a_value_of_a_row_is_shown_whole_also_with_a_semicolon_in_it():
    with pytest.raises(ValueError, match=r"row 0: tests has list \['x; y'\]; expected"):
        check_reward_columns(["code"], [{"prompt": "a", "tests": [["x; y"]]}])


def test_check_reward_columns_accepts_usable_rows(own_rewards):
    check_reward_columns(["accuracy", "format"], ROWS)
    # A row without an answer is rewarded for its format alone.
    check_reward_columns(["accuracy", "format"], with_answer(None))
    check_reward_columns(["number", "last"], with_answer(2))
    check_reward_columns(["math"], with_answer("x+1"))
    check_reward_columns(["own_rewards:short"], [{"prompt": "a"}])
    # An answer that is a float is allowed for your own reward.
    check_reward_columns(["own_rewards:cost"], [{"prompt": "a", "price": 3, "answer": 1.5}])


@pytest.mark.parametrize(
    ("names", "rows", "message"),
    [
        (["format", "accuracy"], [{"prompt": "a"}], "'accuracy', which needs the column 'answer'; f, line 3 lacks it"),
        (["own_rewards:cost"], ROWS, "'own_rewards:cost', which needs the column 'price'; f, line 3 lacks it"),
        (["accuracy"], [{"prompt": "a", "b": 1, "c": 2}], "line 3 lacks it, and has b, c; .* named as --answer_column"),
        (["accuracy", "math"], with_answer(None), "f, line 7: answer is None; expected a text"),
        (["contains", "format"], with_answer(" "), "f, line 7: answer is ' '; expected a text, since nothing could"),
        (["accuracy"], with_answer(1.5), "f, line 7: answer is 1.5; expected a text or a whole number for 'accuracy'"),
        (["format", "number"], with_answer("two"), "f, line 7: answer is 'two'; expected a number for 'number'"),
    ],
)
def test_check_reward_columns_names_unusable_rows(own_rewards, names, rows, message):
    with pytest.raises(ValueError, match=message):
        check_reward_columns(names, rows, ["f, line 3", "f, line 7"][: len(rows)])
    with pytest.raises(ValueError, match="row 1: answer is 'two'"):
        check_reward_columns(["last"], with_answer("two"))
