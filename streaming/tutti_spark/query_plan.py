"""Access to Spark's logical plans: operator classes, column ids, and unique keys.

A plan is a tree of objects in the JVM. A call into the JVM takes some tenths of a millisecond, so these functions make few calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_CHARACTERS_SHOWN = 120  # maximum length of the text of an operator or an expression
_FIELDS_SHOWN = 8  # maximum number of columns in the text of an operator
#: Text that Spark adds to names in a plan: column ids, watermark delays, UUIDs.
_ADDITIONS = re.compile(r"#\d+L?(-T\d+ms)?|\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}, ")
_COLUMN_ID = re.compile(r"#(\d+)")
STREAMS = {"StreamingRelation", "StreamingRelationV2"}
#: Operators that output each input row at most once, in the input order.
IN_ORDER = {
    "Project",
    "Filter",
    "SubqueryAlias",
    "View",
    "ResolvedHint",
    "EventTimeWatermark",
    "LocalLimit",
    "GlobalLimit",
    "Offset",
}
_ROW_PRESERVING = IN_ORDER | {"Sort", "Window", "Repartition", "RepartitionByExpression", "DeduplicateWithinWatermark"}
_ONE_SIDE = {"LeftSemi$", "LeftAnti$", "ExistenceJoin"}


def is_unique(node: Any, by: Iterable[int]) -> bool:
    """Return True if the plan proves that no two rows of `node` are equal in all columns `by`."""
    known = set(by)
    return any(key <= known for key in _unique(node))


def _unique(node: Any) -> list[frozenset[int]]:
    """Return the unique keys of `node` as sets of column ids. An empty set as key means that `node` has at most one row."""
    projects = []
    while (name := class_name(node)) in _ROW_PRESERVING:
        if name == "Project":
            projects.append(node)
        node = node.child()
    keys: list[frozenset[int]] = []
    if name == "Aggregate":
        keys = _group_key(to_list(node.groupingExpressions()), to_list(node.aggregateExpressions()))
    elif name == "Deduplicate":
        keys = [frozenset(column_ids(node.keys())), *_unique(node.child())]
    elif name == "Distinct":
        keys = [frozenset(column_ids(node.output())), *_unique(node.child())]
    elif name == "Join":
        left = _unique(node.left())
        only_left = class_name(node.joinType()) in _ONE_SIDE
        keys = left if only_left else [one | other for one in left for other in _unique(node.right())]
    elif name == "Range" or is_tutti(name, node):
        keys = [
            frozenset(column_ids([column])) for column in to_list(node.output()) if name == "Range" or column.name() == "offset"
        ]
    for project in reversed(projects):
        if keys and not frozenset().union(*keys) <= {int(number) for number in _COLUMN_ID.findall(project.output().toString())}:
            keys = _keys_above_projection(project.projectList(), keys)
    return keys


def _group_key(by: list[Any], given: list[Any]) -> list[frozenset[int]]:
    """Return the unique key of an aggregate's rows; an empty list if its output lacks a grouping expression."""
    found = []
    for expression in by:
        same = (column for column in given if _unwrap(column).semanticEquals(_unwrap(expression)))
        column = next(same, None)
        if column is None:
            return []
        found.append(column.exprId().id())
    return [frozenset(found)]


def _keys_above_projection(expressions: Any, keys: list[frozenset[int]]) -> list[frozenset[int]]:
    """Return the keys with the column ids of a projection's output, without keys that lose a column."""
    renamed: dict[int, int] = {}
    for expression in to_list(expressions):
        number = _column_id(expression)
        if number is not None:
            renamed.setdefault(number, expression.exprId().id())
    return [frozenset(renamed[number] for number in key) for key in keys if key <= renamed.keys()]


def _column_id(expression: Any) -> int | None:
    """Return the id of a column, with or without alias and sort direction; None for any other expression."""
    column = _unwrap(expression)
    return int(column.exprId().id()) if class_name(column) == "AttributeReference" else None


def _unwrap(expression: Any) -> Any:
    """Return an expression without its alias and its sort direction."""
    while class_name(expression) in {"Alias", "SortOrder"}:
        expression = expression.child()
    return expression


def column_ids(expressions: Any) -> list[int]:
    """Return the ids of those `expressions` that are columns."""
    found = expressions if isinstance(expressions, list) else to_list(expressions)
    return [number for number in map(_column_id, found) if number is not None]


def referenced_column_ids(expression: Any) -> set[int]:
    """Return the ids of all columns that an expression references."""
    return {column.exprId().id() for column in to_list(expression.references().toSeq())}


def is_tutti(name: str, node: Any) -> bool:
    """Return True if the operator `node`, of class `name`, reads from the data source `tutti`."""
    return (
        name in {"StreamingRelationV2", "DataSourceV2Relation"}
        and class_name(node.table()) == "PythonTable"
        and node.table().name().lower() == "tutti"
    )


def class_name(node: Any) -> str:
    """Return the class name of a JVM object, without its package."""
    return str(node.getClass().getSimpleName())


def to_list(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence as a list."""
    return [sequence.apply(index) for index in range(sequence.size())]


def printed(node: Any) -> str:
    """Return the text of an operator as Spark prints it, shortened and without column ids."""
    name = class_name(node)
    return f"{name} {node.sourceName()}" if name in STREAMS else short(node.simpleString(_FIELDS_SHOWN).lstrip("~"))


def short(text: str) -> str:
    """Return the text of an operator or an expression, shortened and without Spark's additions to names."""
    plain = " ".join(_ADDITIONS.sub("", text).split())
    return plain if len(plain) <= _CHARACTERS_SHOWN else plain[: _CHARACTERS_SHOWN - 3] + "..."
