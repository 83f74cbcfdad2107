r"""Equations and code: their pairing is checked, the display is complete, a trace tells what a plain call computes."""

import html
import importlib.util
import itertools
import pkgutil
import re
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from grpo_lab import advantages, kl, objective
from grpo_lab.formulas import catalogue as formulas
from grpo_lab.formulas.layout import _math, value_lines
from grpo_lab.formulas.shapes import shapes

PACKAGE = Path(formulas.__file__).parent
counter = itertools.count()

SAMPLE = r'''
import torch
from contextlib import contextmanager
from jaxtyping import Float
from torch import Tensor

@contextmanager
def quiet():
    yield

def centre(rewards: Float[Tensor, "P G"], scale: str = "none") -> Float[Tensor, "P G"]:
    r"""Centre the rewards, and *perhaps* scale them.

    \mu_p = \frac{1}{G} \sum_i r_{p,i} \tag{9.1}
    c_{p,i} = r_{p,i} - \mu_p        \tag{9.2}
    (a, b) = (\min |c|, \max \|c\|)  \tag{9.10}
    s = a b \tag{9.3}

    Eq. (9.2) is also a citation.
    """
    mean = rewards.mean(-1, keepdim=True)  # (9.1)
    centred = (  # P G (9.2)
        rewards
        - mean
    )
    low, high = centred.abs().min(), (centred.abs() | 0 if False else centred.abs()).max()  # (9.10)
    with quiet():
        return centred * low * high  # (9.3)

def fold(values: Float[Tensor, " T"]) -> Float[Tensor, ""]:
    r"""Sum.

    x_t = x_{t-1} + v_t \tag{9.4}
    y_t = 2 x_t \tag{9.5}
    """
    total, out = torch.zeros(()), torch.zeros(len(values))
    for i, value in enumerate(values):
        total += value  # (9.4)
        out[i] = 2 * total  # (9.5)
    out[0] = -1
    return total

def fails(x: float, deep: int = 0) -> float:
    r"""Fail, and recurse.

    y = \frac{1}{x} \tag{9.6}
    z = y + 1 \tag{9.7}
    """
    if deep:
        fails(x + 1, deep - 1)
    y = 1 / x  # (9.6)
    try:
        z = fails(0.0) if x == 2 else y + 1  # (9.7)
    except ZeroDivisionError:
        z = -1.0
    return z

def collect(values: list) -> list:
    r"""Collect the doubles.

    d_t = 2 v_t \tag{9.8}
    """
    out = []
    for value in values:
        out.append(2 * value)  # (9.8)
    return out

def plain(x):
    """No equation."""
    return x
'''


def load(tmp_path: Path, source: str):
    """Import `source` as a module of its own: the pairing is read from live source, so there has to be a file."""
    name = f"formula_sample_{next(counter)}"
    path = tmp_path / f"{name}.py"
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def sample(tmp_path: Path):
    return load(tmp_path, SAMPLE)


# the pairing -------------------------------------------------------------------------------------------------------


def test_equations_pairs_each_tag_with_its_statement(sample):
    mean, centred, extremes, product = formulas.equations(sample.centre)
    assert (mean.tag, mean.latex) == ("9.1", r"\mu_p = \frac{1}{G} \sum_i r_{p,i}")
    assert (mean.code, mean.names) == ("mean = rewards.mean(-1, keepdim=True)", ("mean",))
    assert centred.code == "centred = (\n    rewards\n    - mean\n)"
    assert centred.shape == "P G" and centred.end_lineno - centred.lineno == 3
    lines = Path(sample.__file__).read_text(encoding="utf-8").splitlines()
    assert lines[mean.lineno - 1].strip().startswith("mean = ")
    assert extremes.names == ("low", "high") and extremes.tag == "9.10"
    assert (product.code, product.names) == ("return centred * low * high", ())
    assert formulas.equations(sample.plain) == []


FAULTS = {
    "no line of code": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            """
            y = x
            return y
        ''',
    "no equation of the docstring": '''
        def f(x):
            """F."""
            y = x  # (1.1)
            return y
        ''',
    "in the order 1.1, 1.2, their lines of code 1.2, 1.1": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            z = x \tag{1.2}
            """
            z = x  # (1.2)
            y = x  # (1.1)
            return y, z
        ''',
    "not raw": '''
        def f(x):
            """F.

            y = x \\tag{1.1}
            """
            y = x  # (1.1)
            return y
        ''',
    "control characters": '''
        def f(x):
            r"""F.

            y = x\t+ 1 \\tag{1.1}
            """
            y = x  # (1.1)
            return y
        ''',
    "one equation a line": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1} z = x \tag{1.2}
            """
            y = x  # (1.1)
            z = x  # (1.2)
            return y, z
        ''',
    r"one equation a line, ending in one \tag": r'''
        def f(x):
            r"""F.

            y = x \tag{1.a}
            """
            return x
        ''',
    "stands twice in the docstring": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            z = x \tag{1.1}
            """
            y = x  # (1.1)
            return y
        ''',
    "stands twice in the code": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            """
            y = x  # (1.1)
            y = x + 1  # (1.1)
            return y
        ''',
    "stand on one statement": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            z = x \tag{1.2}
            """
            y = [  # (1.1)
                x,
            ]  # (1.2)
            return y
        ''',
    "first or last line of no statement": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            """
            # (1.1)
            y = x
            return y
        ''',
    "stands on no assignment": r'''
        def f(x):
            r"""F.

            y = x \tag{1.1}
            """
            print(x)  # (1.1)
            return x
        ''',
}


@pytest.mark.parametrize("message", FAULTS)
def test_check_refuses(message: str, tmp_path: Path):
    module = load(tmp_path, FAULTS[message].replace(r"\t+", "\t+"))
    with pytest.raises(ValueError, match=f"f: .*{re.escape(message)}"):
        formulas.check(module.f)


def test_check_refuses_what_is_no_function(sample):
    for wrong in (torch.exp, torch.nn.ReLU):
        with pytest.raises(ValueError, match="a function or method written in Python is needed"):
            formulas.check(wrong)


def test_formula_map_refuses_a_tag_in_two_functions(sample, tmp_path: Path):
    assert list(formulas.formula_map([sample])) == ["9.1", "9.2", "9.3", "9.4", "9.5", "9.6", "9.7", "9.8", "9.10"]
    with pytest.raises(ValueError, match=r"tag \(9.1\) stands twice"):
        formulas.formula_map([sample, load(tmp_path, SAMPLE)])


def test_formula_map_refuses_an_equation_outside_of_functions(tmp_path: Path):
    module = load(tmp_path, 'r"""\nx = y \\tag{1.1}\n"""\n')
    with pytest.raises(ValueError, match="only 0 of the 1 lines"):
        formulas.formula_map([module])


def test_formula_map_finds_methods(tmp_path: Path):
    function = textwrap.indent(textwrap.dedent(SAMPLE[SAMPLE.index("def fails") : SAMPLE.index("def collect")]), "    ")
    module = load(tmp_path, f"class Model:\n{function}")
    assert list(formulas.formula_map([module])) == ["9.6", "9.7"]


# the package -------------------------------------------------------------------------------------------------------


def test_every_equation_of_the_package_has_its_line(capsys):
    found = formulas.formula_map()
    assert len(found) >= 51
    anchors = [
        match["tag"]
        for path in PACKAGE.rglob("*.py")
        if "formula" not in path.stem and "course" not in path.parts
        for line in path.read_text(encoding="utf-8").splitlines()
        if (match := re.search(r"\S.*#\s(?:(?:[A-Z0-9]\w*|scalar) )*\((?P<tag>\d+\.\d+)\)$", line))
    ]
    assert sorted(anchors, key=formulas.tag_key) == list(found)
    formulas.main()
    out = capsys.readouterr().out
    assert f"{len(found)} equations mapped" in out and len(out.splitlines()) == len(found) + 1


def test_every_equation_cited_in_the_package_exists():
    known = formulas.formula_map()
    citation = re.compile(r"Eqs?\. (\(\d+\.\d+\)(?:(?:,|,? and|,? to) \(\d+\.\d+\))*)")
    cited = [
        (path.name, tag)
        for path in PACKAGE.rglob("*.py")
        if "formula" not in path.stem
        for text in citation.findall(path.read_text(encoding="utf-8"))
        for tag in re.findall(r"\d+\.\d+", text)
    ]
    assert cited and [(name, tag) for name, tag in cited if tag not in known] == []


def test_every_equation_over_tensors_has_a_known_shape():
    unknown = []
    for tag, equation in formulas.formula_map().items():
        function = function_of(equation)
        typed = any(hasattr(annotation, "dim_str") for annotation in function.__annotations__.values())
        if typed and tag not in shapes(function, formulas.equations(function)):
            unknown.append(f"({tag}) {equation.function}: state it, as in `# P G ({tag})`")
    assert unknown == []


def function_of(equation: formulas.Equation):
    return pkgutil.resolve_name(equation.function)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (advantages.group_advantages, {"2.1": "P G", "2.2": "P G", "2.3": "P 1", "2.4": "P G"}),
        (kl.kl_exact, {"4.6": "B T V", "4.7": "B T"}),
        (objective.importance_ratio, {"5.1": "B T", "5.2": "B T", "5.3": "B 1"}),
        (objective.aggregate, {"5.15": "B"} | {f"5.{n}": "scalar" for n in range(16, 21)}),
        (objective.policy_loss, {"5.21": "B T", "5.22": "B T", "5.23": "scalar"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_shapes_name_the_axes_of_every_branch(function, expected):
    assert shapes(function, formulas.equations(function)) == expected


# the display -------------------------------------------------------------------------------------------------------


def table(markdown: str) -> list[list[str]]:
    """The cells of a pipe table; as GitHub reads it, every bar divides, whatever stands around it."""
    return [line.strip("|").split("|") for line in markdown.splitlines() if line.startswith("|")]


def bundle(function) -> dict[str, str]:
    found = formulas.equations(function)
    return formulas.source_view(function, found, shapes(function, found))._repr_mimebundle_()


def test_show_prints_equation_code_and_shape(sample, capsys):
    formulas.show(sample.centre, sample.fold)
    out = capsys.readouterr().out
    assert "(9.1)   " + r"\mu_p = \frac{1}{G} \sum_i r_{p,i}" + "\n        mean = rewards.mean(-1, keepdim=True)" in out
    assert "    # P 1\n" in out and "total += value" in out
    assert out.isascii()


def test_the_table_has_one_row_an_equation_and_keeps_its_cells(sample):
    markdown = bundle(sample.centre)["text/markdown"]
    rows = table(markdown)
    assert [row[0].strip() for row in rows] == ["", ":--", "(9.1)", "(9.2)", "(9.10)", "(9.3)"]
    assert {len(row) for row in rows} == {4}
    assert r"$\displaystyle \mu_p = \frac{1}{G} \sum_i r_{p,i}$" in rows[2][1]
    assert r"(\min \vert c\vert , \max \Vert c\Vert )" in rows[4][1]
    assert "`P\u00a01`" in rows[2][3]
    assert (
        rows[3][2].strip()
        == "`centred = (`<br>`\u00a0\u00a0\u00a0\u00a0rewards`<br>`\u00a0\u00a0\u00a0\u00a0- mean`<br>`)`"
    )
    assert "&#124;" in rows[4][2] and "<code>" in rows[4][2]


def test_functions_without_tensors_have_no_shape_column(sample):
    head = table(bundle(sample.collect)["text/markdown"])[0]
    assert [cell.strip() for cell in head] == ["", "equation", "code"]


def test_show_uses_the_notebook_when_there_is_one(sample, monkeypatch, capsys):
    ipython = pytest.importorskip("IPython")
    shown = []
    monkeypatch.setattr(ipython, "get_ipython", lambda: object())
    monkeypatch.setattr(ipython.display, "display", lambda bundle, **settings: shown.append((set(bundle), settings)))
    formulas.show(sample.centre)
    ((kinds, settings),) = shown
    assert kinds == {"text/markdown", "text/plain"} and settings["raw"] is True
    assert capsys.readouterr().out == ""


def test_nbconvert_keeps_formulas_and_code_whole():
    filters = pytest.importorskip("nbconvert.filters")
    for equation in formulas.formula_map().values():
        markdown = bundle(function_of(equation))["text/markdown"]
        page = html.unescape(filters.markdown2html(markdown)).replace("\u00a0", " ")
        text = re.sub(r"<br\s*/?>", "\n", page)
        assert _math(equation.latex) in text
        for line in equation.code.splitlines():
            assert re.sub(" +", " ", line.strip()) in re.sub(" +", " ", text), equation.tag


def test_show_and_trace_refuse_a_function_without_equations(sample):
    for use in (formulas.show, formulas.trace):
        with pytest.raises(ValueError, match="function is plain; no line of its docstring"):
            use(sample.plain)


# the trace ---------------------------------------------------------------------------------------------------------


def test_trace_catches_assignments_tuples_and_the_return(sample):
    rewards = torch.tensor([[1.0, 3.0], [2.0, 2.5]])
    traced = formulas.trace(sample.centre, rewards)
    assert torch.equal(traced.result, sample.centre(rewards))
    assert torch.equal(traced.values["9.1"], torch.tensor([[2.0], [2.25]]))
    assert torch.equal(traced.values["9.2"], rewards - traced.values["9.1"])
    assert [v.item() for v in traced.values["9.10"]] == [0.25, 1.0]
    assert torch.equal(traced.values["9.3"], traced.result)


def test_trace_keeps_every_pass_of_a_loop_as_it_was(sample):
    traced = formulas.trace(sample.fold, torch.tensor([1.0, 2.0, 4.0]))
    assert [v.item() for v in traced.passes["9.4"]] == [1, 3, 7]
    assert [v.tolist() for v in traced.passes["9.5"]] == [[2, 0, 0], [2, 6, 0], [2, 6, 14]]
    assert traced.values["9.4"].item() == 7
    assert "the last of 3 passes" in traced.text and "the last of 3 passes" in traced.markdown


def test_trace_shows_what_a_method_call_changed(sample):
    traced = formulas.trace(sample.collect, [1, 2])
    assert traced.passes == {"9.8": [[2], [2, 4]]}
    assert "out = [2, 4]" in traced.text


def test_trace_ignores_inner_calls_of_itself(sample):
    assert formulas.trace(sample.fails, 4.0, deep=2).passes == {"9.6": [0.25], "9.7": [1.25]}


def test_trace_leaves_out_a_line_that_raised(sample):
    traced = formulas.trace(sample.fails, 2.0)
    assert (traced.result, traced.values) == (-1.0, {"9.6": 0.5})
    assert "*not reached in this call*" in traced.markdown


def test_trace_lets_exceptions_pass_and_puts_the_old_tracer_back(sample):
    def debugger(frame, event, arg):
        return None

    before = sys.gettrace()
    try:
        sys.settrace(debugger)
        with pytest.raises(ZeroDivisionError):
            formulas.trace(sample.fails, 0.0)
        assert sys.gettrace() is debugger
        formulas.trace(sample.fails, 1.0)
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)


def test_trace_keeps_the_gradient_of_the_result_and_detaches_the_values():
    logp = torch.full((2, 3), -1.0, requires_grad=True)
    mask = torch.ones(2, 3, dtype=torch.bool)
    traced = formulas.trace(objective.policy_loss, logp, torch.tensor([1.0, -1.0]), mask)
    loss, _ = traced.result
    loss.backward()
    assert logp.grad.abs().sum() > 0
    assert not traced.values["5.23"].requires_grad
    assert "5.22" not in traced.values  # beta = 0


def test_trace_of_a_real_function_recomputes_its_equations():
    rewards = torch.tensor([[1.0, 0, 0, 1], [1, 1, 1, 1]])
    values = formulas.trace(advantages.group_advantages, rewards).values
    assert torch.allclose(values["2.3"][0], torch.tensor([(1 / 3) ** 0.5]))
    assert torch.equal(values["2.4"], advantages.group_advantages(rewards))


def lines_of(value) -> list[str]:
    equation = formulas.Equation("1.1", "x", "x = 1", 1, 1, ("x",), "", "f")
    return value_lines(equation, [value])


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (2.5, ["x = 2.5"]),
        (torch.tensor(2.5), ["x = 2.5000"]),
        (torch.tensor([[1.0, -2.5]]), ["x, shape (1, 2)", " 1.0000  -2.5000"]),
        (torch.tensor([1e-6, 1.0]), ["x, shape (2,)", "1.000e-06  1.000e+00"]),
        (torch.tensor([0.0, -0.0, float("nan")]), ["x, shape (3,)", "0.0000  0.0000     nan"]),
        (torch.tensor([True, False]), ["x, shape (2,)", " True  False"]),
        (torch.zeros(2, 1, 2).long(), ["x, shape (2, 1, 2)", "0  0", "", "0  0"]),
        (torch.zeros(0), ["x, shape (0,)"]),
        (torch.arange(100.0), ["x, shape (100,)", "min 0, mean 49.5, max 99"]),
        (torch.arange(100), ["x, shape (100,)", "min 0, mean 49.5, max 99"]),
        (torch.full((60,), float("inf")), ["x, shape (60,)", "60 not finite"]),
        (torch.ones(60, dtype=torch.bool), ["x, shape (60,)", "True at 60 of 60"]),
    ],
    ids=lambda value: str(getattr(value, "shape", "")),
)
def test_small_values_are_shown_in_full_and_large_ones_summed_up(value, lines):
    assert lines_of(value) == lines
