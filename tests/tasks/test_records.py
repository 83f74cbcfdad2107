"""Tests of the user's own data as CSV, JSON, parquet, folders and hub data sets, and of its errors."""

import csv
import json
import re
import sys
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_lab.base.checks import InputError
from grpo_lab.rewards import named
from grpo_lab.task_spec import make_task_spec
from grpo_lab.tasks import find_task
from grpo_lab.tasks.data_options import DataOptions
from grpo_lab.tasks.records import FILE_SUFFIXES, file_records, hub_records
from grpo_lab.tasks.user_data import read_user_data

RECORDS = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1), "level": str(n % 3)} for n in range(40)]


def write(file, records):
    """Write the records into a file in the format of its suffix, and return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pq = pytest.importorskip("pyarrow.parquet")
        pq.write_table(sys.modules["pyarrow"].Table.from_pylist(records), file)
    elif file.suffix in (".csv", ".tsv"):
        with file.open("w", encoding="utf-8", newline="") as lines:
            rows = csv.DictWriter(lines, [*records[0]], delimiter="\t" if file.suffix == ".tsv" else ",")
            rows.writeheader()
            rows.writerows(records)
    else:
        lines = [json.dumps(record, ensure_ascii=False) for record in records]
        text = f"[{','.join(lines)}]" if file.suffix == ".json" else "\n".join(lines)
        file.write_text(text, encoding="utf-8")
    return file


def all_rows(data):
    return sorted(data.rows("train") + data.rows("test"), key=lambda row: row["prompt"][-1]["content"])


@pytest.mark.parametrize("kind", FILE_SUFFIXES)
def test_each_form_holds_the_same_problems_and_the_same_tenth_is_held_out(kind, tmp_path):
    """Every format gives the rows of JSON Lines, and a text that looks like a number stays a text."""
    data = read_user_data(write(tmp_path / f"mine{kind}", RECORDS))
    oracle = read_user_data(write(tmp_path / "oracle.jsonl", RECORDS))
    assert [data.rows(split) for split in ("train", "test")] == [oracle.rows(split) for split in ("train", "test")]
    numbers = [int(location.rpartition(" ")[2]) for split in ("train", "test") for location in data.locations(split)]
    assert min(numbers) == (2 if kind in (".csv", ".tsv") else 1)
    assert len(set(numbers)) == 40
    beside = write(tmp_path / f"mine.test{kind}", [{"prompt": "0 + 0 = ?", "answer": "0", "level": "0"}])
    data = read_user_data(tmp_path / f"mine{kind}")
    assert len(data.rows("train")) == 40
    assert data.locations("test")[0].startswith(f"{beside.name}, ")


cells = st.text(st.characters(blacklist_categories=("Cs", "Cc"), whitelist_characters="\n\",';\t"), max_size=12)


@settings(max_examples=60)
@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=6), st.sampled_from((".csv", ".tsv")), st.booleans())
def test_a_csv_file_comes_back_as_it_was_written_with_its_lines(tmp_path_factory, values, kind, mark):
    """Values may have line ends, commas and quotes; the location of a record is the line in which it begins."""
    records = [{"question": question, "answer": answer} for question, answer in values]
    file = write(tmp_path_factory.mktemp("csv") / f"mine{kind}", records)
    content = file.read_bytes()
    file.write_bytes(b"\xef\xbb\xbf" * mark + content)
    locations, records_read = zip(*file_records(file), strict=True)
    assert list(records_read) == records
    lines = content.decode("utf-8").split("\n")
    for location, record in zip(locations, records, strict=True):
        line = lines[int(location.rpartition(" ")[2]) - 1]
        assert line.lstrip('"').startswith(record["question"].split("\n")[0].split('"')[0])


def test_read_user_data_takes_columns_under_other_names_and_a_prompt_template(tmp_path):
    records = [{"question": "Who?", "hint": 3, "solution": "I", "answer": "long"}]
    file = write(tmp_path / "mine.jsonl", records)

    def row(**options):
        return all_rows(read_user_data(file, DataOptions(**options)))[0]

    assert row(prompt_column="question") == records[0] | {"prompt": [{"role": "user", "content": "Who?"}]}
    named = row(prompt_column="question", answer_column="solution")
    assert (named["answer"], named["solution"]) == ("I", "I"), "rewards find it under both names"
    assert row(prompt_template="{{{hint}}} {question}\n")["prompt"][0]["content"] == "{3} Who?\n"
    task = find_task(str(file), prompt_column="question", answer_column="solution")
    assert [row["answer"] for split in task.user_data.splits for row in task.user_data.rows(split)] == ["I"]


def test_a_folder_is_one_data_set_whose_names_say_what_is_held_out(tmp_path):
    parts = RECORDS[:20], RECORDS[20:30], RECORDS[30:]
    for names, options, counts, note in [
        (("a.csv", "b.csv", "c.csv"), {}, None, ""),
        (("train-0.csv", "train-1.csv", "test.csv"), {}, (30, 10), ""),
        (("train.parquet", "test.parquet", "validation.parquet"), {}, (20, 10), "left out: validation.parquet"),
        (("main/train.jsonl", "main/mine.test.jsonl", "other/train.jsonl"), {"dataset_config": "main"}, (20, 10), ""),
        (("train.json", "dev.json", "test.json"), {"dataset_test_split": "dev"}, (20, 10), "left out: test.json"),
        (("train.json", "dev.json", "x.json"), {"dataset_split": "dev"}, None, "left out: train.json, x.json"),
        (("data/train.tsv", "data/test.tsv", "other/test.tsv"), {}, (20, 10), ""),
    ]:
        folder = tmp_path / f"{names[0]} {options}".replace("/", " ")
        for name, records in zip(names, parts, strict=True):
            write(folder / name, records)
        data = read_user_data(folder, DataOptions(**options))
        counts_read = tuple(len(data.rows(split)) for split in ("train", "test"))
        expected = 10 if "dataset_split" in options else 40
        assert counts_read == counts if counts else sum(counts_read) == expected, names
        assert [line for line in data.notes if "left out" in line] == [note] * bool(note)
        assert find_task(str(folder), **options).user_data.rows("train") == data.rows("train")


# --- errors ---------------------------------------------------------------------------------------------------------

HEAD = b"prompt,answer\n"
WRONG = {
    "mine.csv has the columns answer, question; expected an object with a prompt, .*--prompt_column": (
        b"question,answer\na,b\nc,d\n", {}),
    "mine.csv has the columns answer, prompt; expected 'q', which prompt_column names and 'a', which answer_col": (
        HEAD + b"a,b\n", {"prompt_column": "q", "answer_column": "a"}),
    "mine.csv has the columns answer, prompt; expected 'x', which prompt_template names": (
        HEAD + b"a,b\n", {"prompt_template": "{prompt} {x}"}),
    "mine.csv has several columns with the name 'prompt'; expected another name for": (b"prompt,prompt\na,b\n", {}),
    "mine.csv has one column, 'prompt;answer'; expected ',' between columns, and not ';'; save it that way": (
        b"prompt;answer\na;b\n", {}),
    "mine.csv has no row; expected at least one": (b"", {}),
    "has no row; expected at": (HEAD + b"\r\n\r\n", {}),
    "mine.csv, line 2 has 3 values; expected 2, for prompt, answer; .*And: mine.csv, line 3 has one value, 'd'": (
        HEAD + b"a,b,c\nd\n", {}),
    "mine.csv, line 2 is not UTF-8: 'utf-8' codec can't decode byte 0xe9": (HEAD + b"caf\xe9,1\nb,2\n", {}),
    "mine.csv, line 1 is not UTF-8": ("prompt,answer\na,b\n".encode("utf-16"), {}),
    "mine.csv, line 3 is not a line of CSV separated by ',': unexpected end of data": (
        HEAD + b'a,b\n"c,d\ne,f\n', {}),
    "mine.csv, line 2: prompt is ''; expected a text.*And: mine.csv, line 4: prompt is ' '": (
        HEAD + b",1\nb,2\n ,3\n", {}),
    "line 2 has the problem of|line 4 has the problem of mine.csv, line 2 with another answer": (
        HEAD + b"a,1\nb,2\na,3\n", {}),
    "mine.csv has the column 'completion'; expected another name": (b"prompt,completion\na,b\n", {}),
    "dataset_config is 'main'; leave it out: a file has none": (HEAD + b"a,b\n", {"dataset_config": "main"}),
    "prompt_column is 'a'; expected one of prompt_column and prompt_template": (
        HEAD, {"prompt_column": "a", "prompt_template": "{a}"}),
    "prompt_template is 'Q: {'; expected a text with names .*Single '{' encountered": (
        HEAD, {"prompt_template": "Q: {"}),
    "prompt_template is 'Q'; expected a text with names of columns in braces": (HEAD, {"prompt_template": "Q"}),
    "prompt_template is '{a!r}'; expected": (HEAD, {"prompt_template": "{a!r}"}),
    "answer_column is ' '; expected a text": (HEAD, {"answer_column": " "}),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_read_user_data_names_line_and_column_of_csv_errors(message, tmp_path):
    content, options = WRONG[message]
    (tmp_path / "mine.csv").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_user_data(tmp_path / "mine.csv", DataOptions(**options))


def test_the_index_that_pandas_writes_is_no_column(tmp_path):
    (tmp_path / "mine.csv").write_text(",prompt,answer\n0,1 + 1 = ?,2\n", encoding="utf-8")
    assert all_rows(read_user_data(tmp_path / "mine.csv"))[0].keys() == {"prompt", "answer"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"prompt": "a"},\n {"prompt": }]', "mine.json, line 2 is not JSON in UTF-8: Expecting value"),
        (b'[{"prompt": "a"}, {"prompt": NaN}]', "mine.json, row 2 is not JSON in UTF-8: Out of range float"),
        (b'[{"prompt": "a"}, 5, []]', r"mine.json, row 2 is 5; expected an object .*And: mine.json, row 3 is \[\]"),
        (b"[]", "mine.json has no row; expected at least one"),
        (b'[{"prompt": "caf\xe9"}]', "mine.json is not JSON in UTF-8: 'utf-8' codec"),
        (b'{"data": [{"prompt": "a"}]}', "mine.json, line 1 has the columns data; expected an object with a prompt"),
    ],
)
def test_read_user_data_names_errors_of_a_json_file(content, message, tmp_path):
    (tmp_path / "mine.json").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_user_data(tmp_path / "mine.json")


def test_numbers_nested_columns_and_names_of_the_trainer_in_parquet(tmp_path):
    talk = [{"role": "system", "content": "Kurz."}, {"role": "user", "content": "Hm?"}]
    records = [{"prompt": talk, "answer": 3, "completion": "x", "tests": [{"in": [1, 2], "out": 3.5}]}]
    data = read_user_data(write(tmp_path / "mine.parquet", records))
    (row,) = all_rows(data)
    assert row == {"prompt": talk, "answer": 3, "tests": [{"in": [1, 2], "out": 3.5}]}
    assert data.notes[0] == "left out: completion, since the trainer has other things of that name"
    task = write(tmp_path / "nested.parquet", [{"prompt": "a", "tests": {"in": 1}}])
    with pytest.raises(InputError, match=r"nested.parquet, row 1: tests is {'in': 1}; expected a text or a number"):
        read_user_data(task, DataOptions(prompt_template="{prompt} {tests}"))
    content = (tmp_path / "mine.parquet").read_bytes()
    for broken in (b"", content[:-40], b"PAR1" + b"x" * 60 + b"PAR1"):
        (tmp_path / "broken.parquet").write_bytes(broken)
        with pytest.raises(InputError, match="broken.parquet is not a readable parquet file: .*; restore it, or"):
            read_user_data(tmp_path / "broken.parquet")
    pa = sys.modules["pyarrow"]
    twice = pa.table([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"])
    sys.modules["pyarrow.parquet"].write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(InputError, match="twice.parquet has several columns with the name 'prompt'"):
        read_user_data(tmp_path / "twice.parquet")


def test_read_user_data_refuses_unusable_folders(tmp_path):
    write(tmp_path / "mixed" / "a.csv", RECORDS[:2])
    write(tmp_path / "mixed" / "b.jsonl", RECORDS[2:])
    write(tmp_path / "differ" / "a.csv", RECORDS[:2])
    write(tmp_path / "differ" / "b.csv", [{"prompt": "x", "answer": "y"}] * 3)
    write(tmp_path / "tests" / "test.csv", RECORDS)
    (tmp_path / "empty").mkdir()
    for name, options, message in [
        ("mixed", {}, "'.*mixed', which holds files of several kinds: a.csv, b.jsonl; expected one kind"),
        (
            "differ",
            {},
            "b.csv, line 2 has the columns answer, prompt; expected those of a.csv, line 2: answer, lev",
        ),
        ("empty", {}, "which holds no file of data; expected files that end in .jsonl, .json, .csv"),
        ("tests", {}, "task has test files alone; expected a file train.csv"),
        ("mixed", {"dataset_config": "main"}, "main', which is not there; expected files"),
        (
            "tests",
            {"dataset_split": "dev"},
            "dataset_split is 'dev', and no name of a file in .* begins with it; ex",
        ),
    ]:
        with pytest.raises(InputError, match=message):
            read_user_data(tmp_path / name, DataOptions(**options))


def test_wrong_answers_in_user_data_are_listed_by_line(tmp_path):
    """No reward can compare with a number that is not whole, a text that is not a number, or an empty text."""
    lines = [{"prompt": f"{n} + 1 = ?", "answer": n + 1} for n in range(30)]
    for number, answer in {3: 4.0, 5: None, 8: "", 20: True}.items():
        lines[number]["answer"] = answer
    file = write(tmp_path / "mine.jsonl", lines)
    with pytest.raises(InputError, match="answer is ") as caught:
        make_task_spec(str(file), ["accuracy"], for_bundled_model=True).rows("train", None, 0)
    wrong_answers = re.findall(r"mine.jsonl, line (\d+): answer is (4.0|None|''|True)", str(caught.value))
    train = [int(location.rpartition(" ")[2]) for location in read_user_data(file).locations("train")]
    expected = [(str(n + 1), repr(lines[n]["answer"])) for n in (3, 5, 8, 20) if n + 1 in train]
    assert wrong_answers == expected
    assert len(expected) > 2
    with pytest.raises(InputError, match="'accuracy', which needs the column 'answer'.*And: .*'graded', which needs"):
        make_task_spec(
            str(write(tmp_path / "a.csv", [{"prompt": "1 + 1 = ?"}])), ["accuracy", "graded"], for_bundled_model=True
        ).rows("train", None, 0)


def test_each_answer_is_checked_once_and_a_wrong_one_is_said_for_every_line(tmp_path, monkeypatch):
    """A valid answer is checked once although it repeats; an invalid one is reported for each of its lines."""
    answers = [4, "4", "x", 4, "4", "x"] * 20
    file = write(tmp_path / "a.jsonl", [{"prompt": f"{n}?", "answer": answer} for n, answer in enumerate(answers)])
    (tmp_path / "a.test.jsonl").write_text('{"prompt": "held out", "answer": "5"}\n', encoding="utf-8")
    calls, inner = [], named.check_answer
    monkeypatch.setattr(named, "check_answer", lambda answer, *rest: (calls.append(answer), inner(answer, *rest)))
    with pytest.raises(InputError, match="a.jsonl, line 3: answer is 'x'; expected a number for 'number'.*line 6: an"):
        make_task_spec(str(file), ["number"], for_bundled_model=True).rows("train", None, 0)
    assert [answer for answer in calls if answer != "x"] == [4, "4"]
    assert calls.count("x") == 40


def test_options_for_user_data_are_refused_with_other_tasks():
    for name in ("sums", "gsm8k:folder", "gym:countdown"):
        with pytest.raises(InputError, match="prompt_column is 'q'; leave it out: it is for data of your own"):
            find_task(name, prompt_column="q")


# --- the hub, replaced by a folder that `datasets` reads in the same way ---------------------------------------------


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Make a data set with two configurations and two splits under the name of a hub data set, without the network."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "stored"
    for config in ("main", "other"):
        write(folder / config / "train.parquet", RECORDS[:30])
        write(folder / config / "test.parquet", RECORDS[30:])
    configs = "".join(
        f"- config_name: {config}\n  data_files:\n"
        + "".join(f"  - split: {split}\n    path: {config}/{split}.parquet\n" for split in ("train", "test"))
        for config in ("main", "other")
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n", encoding="utf-8")
    stored, loads = {"them/sums": str(folder)}, []
    for function in ("load_dataset", "load_dataset_builder"):
        inner = getattr(datasets, function)

        def local(name, *arguments, inner=inner, **keywords):
            assert "trust_remote_code" not in keywords
            loads.append((name, *arguments))
            if name not in stored:
                raise ConnectionError("no route to the hub")
            return inner(stored[name], *arguments, **keywords)

        monkeypatch.setattr(datasets, function, local)
    return stored, loads


def test_a_data_set_of_the_hub_by_configuration_and_split(hub):
    pytest.importorskip("pyarrow")
    _, loads = hub
    task = find_task("them/sums", dataset_config="main", dataset_split="train")
    assert len(task.user_data.rows("train")) + len(task.user_data.rows("test")) == 30
    assert task.name == "them/sums"
    assert set(loads) == {("them/sums", "main")}
    assert {location.split(", row ")[0] for location in task.user_data.locations("train")} == {"them/sums, train"}
    data = find_task("them/sums", dataset_config="other", dataset_test_split="test").user_data
    rows = data.rows("train") + data.rows("test")
    messages = [[{"role": "user", "content": record["prompt"]}] for record in RECORDS]
    assert rows == [record | {"prompt": prompt} for record, prompt in zip(RECORDS, messages, strict=True)]
    with pytest.raises(InputError, match="them/sums, train has the columns answer, level, prompt; expected 'q', which"):
        find_task("them/sums", dataset_config="main", prompt_column="q")


def test_hub_errors_are_reported_in_the_words_of_the_hub(hub):
    for name, options, message in [
        (
            "them/sums",
            {},
            r"is 'them/sums', no folder here, and on the hub its split 'train' could not be loaded .*main",
        ),
        ("them/sums", {"dataset_config": "all"}, "of the configuration 'all' could not be loaded .*ValueError.*main"),
        ("them/sums", {"dataset_config": "main", "dataset_split": "dev"}, "split 'dev' of the .*ValueError.*train"),
        ("them/none", {}, r"\(ConnectionError: no route to the hub\); the name must be OWNER/NAME"),
    ]:
        with pytest.raises(InputError, match=message):
            find_task(name, **options)


def test_a_data_set_that_would_run_code_is_refused(hub, tmp_path):
    stored, _ = hub
    script = tmp_path / "evil"
    script.mkdir()
    ran = tmp_path / "ran"
    (script / "evil.py").write_text(f"open({str(ran)!r}, 'w')\n", encoding="utf-8")
    stored["them/evil"] = str(script)
    with pytest.raises(InputError, match=r"could not be loaded \(RuntimeError: .*scripts are no longer .*evil.py"):
        list(hub_records("them/evil", None, "train"))
    (tmp_path / "web").mkdir()
    with tarfile.open(tmp_path / "web" / "a.tar", "w") as archive:
        archive.add(script / "evil.py", "0.py")
    stored["them/web"] = str(tmp_path / "web")
    with pytest.raises(InputError, match="which `datasets` reads by 'webdataset'; expected one of arrow, cache, csv"):
        list(hub_records("them/web", None, "train"))
    assert not ran.exists()


def test_an_old_version_of_datasets_is_refused(hub, monkeypatch):
    monkeypatch.setattr(sys.modules["datasets"], "__version__", "3.6.0")
    with pytest.raises(ImportError, match=re.escape('`datasets` 3.6.0 is too old: pip install "grpo-lab[data]"')):
        list(hub_records("them/sums", "main", "train"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ImportError, match="is 'them/sums', and `datasets`, which reads it, is not installed"):
        list(hub_records("them/sums", "main", "train"))
