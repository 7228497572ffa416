"""The text in code that no number depends on; digests of code leave it out.

That is, of a module's syntax tree:

* docstrings, also of attributes: strings that stand alone;
* the message of an error: text in ``raise X(...)`` with a class X, and after ``assert ...,``;
* the message of a warning: the first argument of ``warnings.warn(...)``;
* by which attacks a defense is judged: ``judged_by = ...``, and the name ``Judge`` of privbench;
* how boards show a game: ``Board(...)`` and ``Column(...)`` of privbench. Results carry it, so
  boards show a result with the headings that its game had when it ran.

An f-string is text, but calls in it may do something. They count, except of Python's describing
functions (``len``, ``sorted``, ...) and of methods of a constant (``", ".join(...)``). ``:=``,
``await`` and ``yield`` count, too.
"""

from __future__ import annotations

import ast
from typing import Any, TypeVar

_Node = TypeVar("_Node", bound=ast.AST)

#: Functions that change nothing: a message may call them.
_DESCRIBING = frozenset({
    "abs", "bool", "dict", "enumerate", "float", "format", "getattr", "int", "isinstance", "len",
    "list", "max", "min", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum",
    "tuple", "type", "zip",
})  # fmt: skip
#: Classes of privbench that only say how boards show a game.
_SHOWING = frozenset({"Board", "Column"})
#: What a defense says of attacks; nothing that is measured reads it.
_JUDGED, _JUDGE = "judged_by", "Judge"
_LEFT_OUT = "text"


def without_texts(tree: _Node) -> _Node:
    """Return the tree without text; the tree itself is changed.

    >>> def code(text):
    ...     return ast.dump(without_texts(ast.parse(text)))
    >>> code("raise ValueError(f'{x} is odd')") == code("raise ValueError(f'no: {y}')")
    True
    >>> code("raise ValueError(f'{take()}')") == code("raise ValueError(f'{drop()}')")
    False
    """
    return _Texts(_names_of_boards(tree)).visit(tree)  # type: ignore[no-any-return]


def _names_of_boards(tree: ast.AST) -> frozenset[str]:
    """By which names the module calls what shows a game."""
    found = {"privbench.Board", "privbench.Column"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "privbench":
            found |= {a.asname or a.name for a in node.names if a.name in _SHOWING}
    return frozenset(found)


class _Texts(ast.NodeTransformer):
    def __init__(self, boards: frozenset[str]) -> None:
        self.boards = boards

    def generic_visit(self, node: ast.AST) -> ast.AST:
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                one for one in body if not (_stands_alone(one) or _judges(node, one))
            ]
        return super().generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        if str(node.module).partition(".")[0] == "privbench":
            node.names = [one for one in node.names if one.name != _JUDGE or one.asname]
        return node if node.names else None

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        made = node.exc
        if isinstance(made, ast.Call) and _last(made.func)[:1].isupper():
            made.args = [_message(one) for one in made.args]
            for keyword in made.keywords:
                keyword.value = _message(keyword.value)
        return self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if node.msg is not None:
            node.msg = _message(node.msg)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = ast.unparse(node.func)
        if name in self.boards:
            return ast.Constant(_LEFT_OUT)
        if name == "warnings.warn" and node.args:
            node.args[0] = _message(node.args[0])
        return self.generic_visit(node)


def _judges(inside: ast.AST, node: Any) -> bool:
    """Whether a statement of a class says by which attacks a defense is judged."""
    target = getattr(node, "target", None) or next(iter(getattr(node, "targets", ())), None)
    return isinstance(inside, ast.ClassDef) and getattr(target, "id", "") == _JUDGED


def _stands_alone(node: Any) -> bool:
    return isinstance(node, ast.Expr) and _is_text(node.value)


def _is_text(node: ast.AST) -> bool:
    """Whether an expression is text: a string, an f-string, or what joins them or chooses one."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if isinstance(node, ast.BinOp):
        joined = isinstance(node.op, ast.Add) and _is_text(node.right)
        return (joined or isinstance(node.op, ast.Mod)) and _is_text(node.left)
    if isinstance(node, ast.IfExp):
        return _is_text(node.body) and _is_text(node.orelse)
    return isinstance(node, ast.JoinedStr)


def _message(node: ast.expr) -> ast.expr:
    """What counts of an argument: of text only the calls and bindings in it."""
    if not _is_text(node):
        return node
    doing = [one for one in ast.walk(node) if _does(one)]
    return ast.Tuple(doing, ast.Load()) if doing else ast.Constant(_LEFT_OUT)  # type: ignore[arg-type]


def _does(node: ast.AST) -> bool:
    """Whether evaluating an expression may do more than describe."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name):
            return node.func.id not in _DESCRIBING
        return not (isinstance(node.func, ast.Attribute) and _is_text(node.func.value))
    return isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom)


def _last(name: ast.AST) -> str:
    return ast.unparse(name).rpartition(".")[2]
