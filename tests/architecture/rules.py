"""The rules of the house as functions: each takes text and returns what breaks the rule, one finding a line."""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Callable, Iterator
from functools import lru_cache

LINES_MAX = 700
FUNCTION_LINES_MAX = 80  # comments beside the lines and the docstring count too

# A note to come back later, a warning silenced without a word why, a test that proves nothing.
LATER = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")
UNEXPLAINED = re.compile(r"#\s*(type:\s*ignore(?!\[[\w, -]+\]\s+#\s*\w)|noqa(?!:\s*[A-Z]+\d+))")
MACHINE_PATH = re.compile(r"/(work|farm|root|home)/[a-z][^\s\"'`)]*")
PATHS_OF_THE_IMAGES = re.compile(r"/home/(tutti|nonroot|spark)\b")
MAKE_CALL = re.compile(r"\bmake ([a-z][a-z-]*)")
RAISES = re.compile(r"^Raises:\n((?:[ \n].*\n?)+)", flags=re.MULTILINE)
MODULE = re.compile(r"`((?:\.\./)*(?!NAME)[\w/]+\.py)`")
CODE_SPAN = re.compile(r"`[^`\n]+`")
TEST_NAME = re.compile(r"\btest_[\w.*]*")
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")

# Calls that reach a clock, chance or a file without an import that the contracts would see.
IMPURE_CALLS = {"now", "utcnow", "today", "uuid1", "uuid4", "open", "print", "input"}


@lru_cache(maxsize=1)
def nodes(text: str) -> list[ast.AST]:
    """Return all nodes of the syntax tree of a module."""
    # The next rule asks for the same file, and parsing costs more than any rule. All trees together would take a gigabyte.
    return list(ast.walk(ast.parse(text)))


def length(text: str) -> Iterator[str]:
    """A file that is too long to read at one sitting."""
    lines = text.count("\n")
    if lines > LINES_MAX:
        yield f"{lines} lines, {LINES_MAX} allowed: split it into two modules"


def function_length(text: str) -> Iterator[str]:
    """A function longer than a screen."""
    for node in nodes(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield f"line {node.lineno}: {node.name} has {lines} lines, {FUNCTION_LINES_MAX} allowed"


def swallowed_errors(text: str) -> Iterator[str]:
    """An exception that is caught whole, or caught broadly and dropped."""
    for node in nodes(text):
        if not isinstance(node, ast.ExceptHandler):
            continue
        if node.type is None:
            yield f"line {node.lineno}: bare except"
        elif isinstance(node.type, ast.Name) and node.type.id in ("Exception", "BaseException") and _drops(node.body):
            yield f"line {node.lineno}: {node.type.id} caught and dropped"


def _drops(body: list[ast.stmt]) -> bool:
    return all(
        isinstance(statement, ast.Pass | ast.Continue)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in body
    )


def loose_comments(text: str) -> Iterator[str]:
    """Comments that put work off or silence a checker without code and reason."""
    if not (LATER.search(text) or UNEXPLAINED.search(text)):
        return  # tokenizing is slow, and few files have such a line at all
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (LATER.search(token.string) or UNEXPLAINED.search(token.string)):
            yield f"line {token.start[0]}: {token.string}"


def hollow_tests(text: str) -> Iterator[str]:
    """Tests that are skipped or that cannot fail."""
    for node in nodes(text):
        if isinstance(node, ast.Attribute) and node.attr in ("skip", "skipif", "importorskip", "skipTest"):
            owner = ast.unparse(node.value)
            if owner in ("pytest", "pytest.mark", "unittest", "self"):
                yield f"line {node.lineno}: {owner}.{node.attr}"
        elif isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and node.test.value:
            yield f"line {node.lineno}: an assertion that cannot fail"


def impure_calls(text: str) -> Iterator[str]:
    """Calls to a clock, to chance or to a file in code that must have none."""
    for node in nodes(text):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in IMPURE_CALLS:
                yield f"line {node.lineno}: {ast.unparse(node.func)}()"


def undeclared_imports(text: str, declared: set[str]) -> Iterator[str]:
    """Imports of libraries, lazy ones too, that are neither Python's own nor declared."""
    for node in nodes(text):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in declared:
                yield f"{name} is not declared"


def unknown_errors(text: str, known: set[str]) -> Iterator[str]:
    """Return the names in `Raises:` sections that are neither in `known` nor in the module's code."""
    code = set(re.findall(r"\w+", re.sub(r'""".*?"""', "", text, flags=re.DOTALL)))
    for node in nodes(text):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if section := RAISES.search(ast.get_docstring(node) or ""):
            for names in re.findall(r"^    ([A-Za-z_][\w., ]*):", section[1], flags=re.MULTILINE):
                yield from (f"{node.lineno}: {name}" for name in names.split(", ") if not {name.split(".")[0]} & (known | code))


def machine_paths(text: str) -> Iterator[str]:
    """Paths that exist on one machine only."""
    for number, line in enumerate(text.splitlines(), start=1):
        for match in MACHINE_PATH.finditer(line):
            if not PATHS_OF_THE_IMAGES.match(match[0]):
                yield f"line {number}: {match[0]}"


def unknown_targets(text: str, targets: set[str]) -> Iterator[str]:
    """Commands `make X` in code spans and code blocks of a page that the Makefile does not know."""
    code = re.findall(r"```.*?```|`[^`\n]+`", text, flags=re.DOTALL)
    for target in MAKE_CALL.findall("\n".join(code)):
        if target not in targets:
            yield f"make {target}"


def unknown_installs(text: str, extras: set[str]) -> Iterator[str]:
    """Commands that install the project from a package index, where it is not published, or with an extra that does not exist."""
    for found in re.findall(r"install\s+(?:-\S+\s+)*['\"]?tutti-ingest\S*|tutti-ingest\[[\w,-]+\]", text):
        yield f"{found}: name a checkout or a wheel"
    for path, names in re.findall(r"install '([^'\[\n]+)\[([\w,-]+)\]'", text):
        for extra in names.split(","):
            if extra not in extras:
                yield f"install {path}[{names}]: no extra {extra}"


def links(text: str) -> Iterator[str]:
    """Relative links of a Markdown page."""
    for target in LINK.findall(text):
        if not re.match(r"[a-z]+:", target):
            yield target


def missing_modules(text: str, exists: Callable[[str], bool]) -> Iterator[str]:
    """Python files in backquotes that `exists` does not find."""
    for number, line in enumerate(text.splitlines(), 1):
        yield from (f"{number}: {path} is not there" for path in MODULE.findall(line) if not exists(path))


def missing_tests(text: str, known: set[str]) -> Iterator[str]:
    """Names of tests, or of modules of tests, in backquotes that are not in `known`; shortened names too."""
    for number, line in enumerate(text.splitlines(), 1):
        for name in TEST_NAME.findall(" ".join(CODE_SPAN.findall(line))):
            if name.removesuffix(".py") not in known:
                yield f"{number}: {name} is not there"
