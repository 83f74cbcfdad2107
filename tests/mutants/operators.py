"""Make small mistakes in a line of mathematics.

`variants` yields every syntax tree that differs from a given one in one place. It exchanges operators and comparisons,
drops terms, calls and statements, changes constants, swaps branches and arguments, and drops signs and gradients.
"""

import ast
import copy
from collections.abc import Iterator

from grpo_lab.course.stub import is_check

MODULES = {"torch", "math", "np", "einops", "F"}
# Dropping one of these calls changes a type that compares equal (1.0 == True), or nothing that a test could see.
KEPT_CALLS = {"float", "bool", "int", "list", "tuple"}
# Fields of a syntax tree that are not changed.
UNCHANGED_FIELDS = {"targets", "target", "annotation", "returns", "decorator_list"}
BINARY = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Pow: ast.Mult, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
NAMES = {
    "min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "amin": "amax", "amax": "amin",
    "argmin": "argmax", "argmax": "argmin", "sum": "mean", "mean": "sum", "nansum": "sum", "any": "all", "all": "any",
    "exp": "expm1", "expm1": "exp", "log": "exp", "softmax": "log_softmax", "log_softmax": "softmax",
    "logsumexp": "amax", "std": "var", "square": "abs", "sqrt": "square", "sigmoid": "tanh", "comb": "perm",
}  # fmt: skip


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """Yield every tree that differs from a function, a statement or an expression in one place."""
    yield from _of_statement(node) if isinstance(node, ast.stmt) else _at_root(node)
    if _is_negative_number(node):
        return
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST) and field not in UNCHANGED_FIELDS and not isinstance(value, ast.arguments):
            yield from (_with(node, **{field: new}) for new in variants(value))
        elif isinstance(value, list) and field not in UNCHANGED_FIELDS:
            for index, part in enumerate(value):
                for new in _of_part(part):
                    yield _with(node, **{field: [*value[:index], *new, *value[index + 1 :]] or [ast.Pass()]})


def _of_part(part: object) -> Iterator[list[ast.AST]]:
    """Yield the replacements of an element of a list of nodes; checks have none, because no case tests errors."""
    if not isinstance(part, ast.AST) or isinstance(part, ast.Raise) or (isinstance(part, ast.stmt) and is_check(part)):
        return
    yield from ([new] for new in variants(part))
    if isinstance(part, ast.AugAssign | ast.If | ast.Expr):
        yield []


def _of_statement(node: ast.stmt) -> Iterator[ast.stmt]:
    if isinstance(node, ast.AugAssign) and type(node.op) in BINARY:
        yield _with(node, op=BINARY[type(node.op)]())
    if isinstance(node, ast.If | ast.While):
        yield _with(node, test=ast.UnaryOp(ast.Not(), node.test))
    value = getattr(node, "value", None)
    if isinstance(value, ast.Tuple):
        yield _with(node, value=_with(value, elts=value.elts[::-1]))
    elif _is_arithmetic(value) and not isinstance(node, ast.Expr):
        yield _with(node, value=_detached(value))
        if not isinstance(value, ast.UnaryOp):
            yield _with(node, value=ast.UnaryOp(ast.USub(), value))


def _at_root(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.BinOp():
            yield from _binary(node)
        case ast.UnaryOp(operand=ast.Constant(value=number)) if _is_negative_number(node):
            yield ast.Constant(number - 1)
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Compare(ops=[operator]):
            yield from (_with(node, ops=[new()]) for new in COMPARISONS[type(operator)])
        case ast.BoolOp(op=operator, values=values):
            yield _with(node, op=ast.Or() if isinstance(operator, ast.And) else ast.And())
            for index in range(len(values)):
                remaining = values[:index] + values[index + 1 :]
                yield remaining[0] if len(remaining) == 1 else _with(node, values=remaining)
        case ast.IfExp(body=body, orelse=orelse):
            yield from (body, orelse)
        case ast.Call():
            yield from _call(node)
        case ast.Subscript(slice=ast.Tuple(elts=[ast.Name() as first, ast.Name() as second, *others]) as places):
            yield _with(node, slice=_with(places, elts=[second, first, *others]))
        case ast.Constant(value=value):
            yield from (ast.Constant(new) for new in _constants(value))


def _binary(node: ast.BinOp) -> Iterator[ast.AST]:
    if type(node.op) in BINARY:
        yield _with(node, op=BINARY[type(node.op)]())
    yield node.left
    if not isinstance(node.op, (ast.Sub, ast.Div, ast.Pow, ast.FloorDiv, ast.Mod)):
        yield node.right
    elif not isinstance(node.op, ast.Pow):
        yield _with(node, left=node.right, right=node.left)


def _call(node: ast.Call) -> Iterator[ast.AST]:
    function, arguments = node.func, node.args
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in NAMES:
        renamed = _with(function, **{"attr" if isinstance(function, ast.Attribute) else "id": NAMES[name]})
        yield _with(node, func=renamed)
    if name == "where":
        condition, yes, no = arguments
        yield from (_with(node, args=[condition, no, yes]), yes)
    if isinstance(function, ast.Attribute) and getattr(function.value, "id", "") not in MODULES:
        if name != "append":
            yield function.value
    elif len(arguments) == 1 and not node.keywords and name not in KEPT_CALLS:
        yield arguments[0].value if isinstance(arguments[0], ast.Starred) else arguments[0]
    elif len(arguments) > 1 and not any(isinstance(a, ast.Constant) for a in arguments[:2]) and name not in NAMES:
        yield _with(node, args=[arguments[1], arguments[0], *arguments[2:]])
    for index, keyword in enumerate(node.keywords):
        if keyword.arg != "keepdim":
            yield _with(node, keywords=node.keywords[:index] + node.keywords[index + 1 :])


def _constants(value) -> list:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1] if value > 0 else [value + 1]
    if isinstance(value, float):
        return [2 * value] if value else [1.0]
    if isinstance(value, str):
        return _strings(value)
    return []


def _strings(value: str) -> list[str]:
    """Return mutants of a string: another reduction, or an einops pattern with exchanged or other reduced axes."""
    if value in NAMES:
        return [NAMES[value]]
    inputs, arrow, outputs = value.partition("->")
    axes, kept_axes = inputs.split(), outputs.split()
    if not arrow or "(" in outputs or len(kept_axes) < 2:
        return []
    results = [[*kept_axes[:i], kept_axes[i + 1], kept_axes[i], *kept_axes[i + 2 :]] for i in range(len(kept_axes) - 1)]
    if len(axes) == 2 and kept_axes == [axes[0], "1"]:
        results.append(["1", axes[1]])
    return [f"{inputs}-> {' '.join(result)}" for result in results]


def _detached(value: ast.expr) -> ast.expr:
    is_detached = isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "detach"
    return value if is_detached else ast.Call(ast.Attribute(value, "detach", ast.Load()), [], [])


def _is_negative_number(node: ast.AST) -> bool:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int())):
            return True
    return False


def _is_arithmetic(node: ast.AST | None) -> bool:
    """Return whether a node may compute a number with a sign and a gradient; comparisons and lists do not."""
    operator = getattr(node, "op", None)
    is_logical = isinstance(operator, (ast.BitAnd, ast.BitOr, ast.Not))
    return isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Call, ast.Subscript)) and not is_logical


def _with(node: ast.AST, **fields) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new
