"""The parts of source code that can change its behaviour.

Docstrings, unread annotations and the names of local variables are left out of Python, comments and spaces out of C++.
In doubt, a word stays.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
PLAIN = (".jinja2", ".css", ".js")
"""Endings of files that count as they are, with every comment and space."""
_READS_NAMES = {"locals", "vars", "dir", "eval", "exec"}
"""Functions that can see the names of local variables."""


@dataclass
class Meaning:
    """The meaning of a top-level statement, and what it uses."""

    text: str = ""
    names: set[str] = field(default_factory=set)
    """Module-level or built-in names with the attributes that follow: `spsa.estimate`."""
    imports: set[str] = field(default_factory=set)
    """Names from its own imports, in full: `soma.estimators.spsa.estimate`."""
    loads: set[str] = field(default_factory=set)
    """Full names that it imports itself, used or not."""
    sources: set[str] = field(default_factory=set)
    """C++ files that it names, and files that count as they are."""


def of_statement(statement: ast.stmt) -> Meaning:
    """Return the meaning of a top-level statement; modifies the statement."""
    reader = _Reader()
    reader.meaning.text = _text(reader.visit(statement))
    return reader.meaning


def bindings(statement: ast.Import | ast.ImportFrom) -> dict[str, str]:
    """Return the full name behind every name that an import binds."""
    if isinstance(statement, ast.Import):
        whole = {alias.asname: alias.name for alias in statement.names if alias.asname}
        return whole | {(first := alias.name.split(".")[0]): first for alias in statement.names if not alias.asname}
    if statement.level or statement.module is None or any(alias.name == "*" for alias in statement.names):
        raise ValueError(f"`{ast.unparse(statement)}` does not name what it imports; import each name explicitly")
    return {alias.asname or alias.name: f"{statement.module}.{alias.name}" for alias in statement.names}


class _Reader(ast.NodeTransformer):
    """A visitor that removes what has no meaning, numbers local variables, and notes what is used."""

    def __init__(self) -> None:
        self.meaning = Meaning()
        self._scopes: list[_Scope] = []
        self._in_class = self._renames = False
        self._locals = 0

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str) and node.value.endswith((".cpp", *PLAIN)):
            self.meaning.sources.add(node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        """Keep a field's annotation, which pydantic for example reads, and drop a variable's."""
        if self._in_class:
            return self.generic_visit(node)
        return self.visit(ast.Assign([node.target], node.value)) if node.value else None

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outer, self._in_class = self._in_class, True
        self.generic_visit(node)
        self._in_class = outer
        return node

    def _function(self, node: _Function) -> ast.AST:
        args = node.args
        arguments = [*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))]
        if not isinstance(node, ast.Lambda):
            if not node.decorator_list:  # a decorator may read the annotations
                node.returns = None
                for argument in arguments:
                    argument.annotation = None
            # All of these are evaluated outside the function's own scope.
            node.decorator_list = [self.visit(d) for d in node.decorator_list]
            node.returns = node.returns and self.visit(node.returns)
        self.visit(args)
        body = node.body if isinstance(node.body, list) else [node.body]
        scope = _Scope.of(body)
        scope.keep(argument.arg for argument in arguments)
        self._enter(node, scope)
        done = [self.visit(statement) for statement in body]
        node.body = done[0] if isinstance(node, ast.Lambda) else [statement for statement in done if statement]
        self._leave()
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _function

    def _comprehension(self, node: _Comprehension) -> ast.AST:
        first = node.generators[0]
        outside = self.visit(first.iter)  # evaluated in the enclosing scope
        first.iter = ast.Constant(None)
        self._enter(node, _Scope.of([generator.target for generator in node.generators]))
        self.generic_visit(node)
        self._leave()
        first.iter = outside
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _enter(self, node: ast.AST, scope: _Scope) -> None:
        if not self._scopes:
            inside = list(ast.walk(node))
            reads_names = any(isinstance(n, ast.Name) and n.id in _READS_NAMES for n in inside)
            # The names in a nested class are attributes; distinguishing them is not worth the effort.
            self._renames = not reads_names and not any(isinstance(n, ast.ClassDef) for n in inside)
            self._locals = 0
        if self._renames:
            self._locals = scope.number(self._locals)
        scope.in_class, self._in_class = self._in_class, False
        self._scopes.append(scope)

    def _leave(self) -> None:
        self._in_class = self._scopes.pop().in_class

    def _scope_of(self, name: str) -> _Scope | None:
        """Return the scope that binds a name, or None if the module does."""
        scope = next((scope for scope in reversed(self._scopes) if name in scope), None)
        return None if scope is None or name in scope.globals else scope

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._used(node, node, "")

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        root: ast.expr = node
        words = []
        while isinstance(root, ast.Attribute):
            words.append(root.attr)
            root = root.value
        return self._used(node, root, "".join(f".{w}" for w in reversed(words)))

    def _used(self, node: ast.Name | ast.Attribute, root: ast.expr, attributes: str) -> ast.AST:
        if not isinstance(root, ast.Name):
            return self.generic_visit(node)
        scope = self._scope_of(root.id)
        if scope is None:
            self.meaning.names.add(root.id + attributes)
        elif root.id in scope.imports:
            self.meaning.imports.add(scope.imports[root.id] + attributes)
        else:
            root.id = scope.names[root.id]
        return node

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        scopes = {name: self._scope_of(name) for name in node.names}
        node.names = [scope.names.get(name, name) if scope else name for name, scope in scopes.items()]
        return node

    def visit_Import(self, node: ast.Import) -> ast.AST:
        self.meaning.loads.update(alias.name for alias in node.names)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        self.meaning.loads.update(bindings(node).values())
        return node


@dataclass
class _Scope:
    """The names that a function or a comprehension binds."""

    names: dict[str, str] = field(default_factory=dict)
    """Replacement of each name."""
    kept: set[str] = field(default_factory=set)
    """Names of parameters, functions and classes, and names that the syntax tree holds as plain strings."""
    imports: dict[str, str] = field(default_factory=dict)
    globals: set[str] = field(default_factory=set)
    in_class: bool = False
    """True in the body of a class."""

    @classmethod
    def of(cls, nodes: Sequence[ast.AST]) -> _Scope:
        scope = cls()
        outer: set[str] = set()
        for node in _own(nodes):
            match node:
                case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
                    scope.names[name] = name
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    scope.keep([name])
                case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                    scope.keep([name])
                case ast.MatchMapping(rest=str(name)):
                    scope.keep([name])
                case ast.Import() | ast.ImportFrom():
                    scope.imports |= bindings(node)
                    scope.keep(bindings(node))
                case ast.Global(names=names):
                    scope.globals.update(names)
                case ast.Nonlocal(names=names):
                    outer.update(names)
        for name in outer:
            scope.names.pop(name, None)
        return scope

    def __contains__(self, name: str) -> bool:
        return name in self.names or name in self.globals

    def keep(self, names: Iterable[str]) -> None:
        for name in names:
            self.names[name] = name
            self.kept.add(name)

    def number(self, first: int) -> int:
        """Assign numbers to the names that are not kept, which no program can see, in the order of their binding."""
        free = [name for name in self.names if name not in self.kept | self.globals]
        self.names |= {name: str(i) for i, name in enumerate(free, first)}
        return first + len(free)


def _own(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, but not those of functions, classes and comprehensions in it."""
    todo: list[ast.AST] = list(reversed(nodes))
    while todo:
        node = todo.pop()
        yield node
        if not isinstance(node, _Function | _Comprehension | ast.ClassDef):
            todo += reversed(list(ast.iter_child_nodes(node)))


def _text(node: object) -> str:
    """Write a syntax tree in the same way in every version of Python; empty fields are left out."""
    if isinstance(node, ast.AST):
        values = [(name, getattr(node, name, None)) for name in node._fields]
        fields = [f"{name}={_text(value)}" for name, value in values if value is not None and value != []]
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join([_text(item) for item in node])}]"
    return repr(node)


_CPP = re.compile(
    r"""
    (?P<blank> (?: [^\S\n] | \\\r?\n | //(?:\\\r?\n|[^\n])* | /\*.*?\*/ )+ )
    | (?P<line> \n )
    | (?P<word> (?:u8|[uUL])? R"(?P<mark>[^()\\\s]*)\( .*? \)(?P=mark)"
        | (?:u8|[uUL])? "(?:\\.|[^"\\\n])*"
        | (?:u8|[uUL])? '(?:\\.|[^'\\\n])*'
        | \.?\d (?: [eEpP][+-] | '\w | [\w.] )*
        | [^\W\d]\w*
        | <<= | >>= | <=> | \.\.\. | ->\* | :: | -> | \+\+ | -- | << | >> | && | \|\| | \#\# | \.\*
        | [-+*/%&|^<>=!]=
        | . )
    """,
    re.VERBOSE | re.DOTALL,
)


def of_cpp(source: str) -> str:
    """Return the tokens of a C++ file; a preprocessor line stays whole, as its spaces may matter."""
    words: list[str] = []
    directive, begins = False, True
    for token in _CPP.finditer(source):
        if token["line"]:
            if directive:
                words.append("\n")
            directive, begins = False, True
        elif token["blank"]:
            if directive:
                words.append(" ")
        else:
            directive = directive or (begins and token["word"] == "#")
            begins = False
            words.append(token["word"])
    return "\x1f".join(words).replace("\x1f \x1f\n", "\x1f\n")


def includes(source: str) -> list[str]:
    """Return the project's own files that a C++ file includes."""
    return re.findall(r'^\s*#\s*include\s*"([^"]+)"', source, re.MULTILINE)
