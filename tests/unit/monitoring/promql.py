"""Evaluates the part of PromQL that the alerts use, over series that are functions of time. A library parses; the semantics are
here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import promql_parser as grammar

Labels = frozenset[tuple[str, str]]
Series = Mapping[tuple[str, Labels], Callable[[float], float]]
"""Of each series, by name and labels, its value at a time in s."""
Vector = dict[Labels, float]

_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "==": lambda one, other: one == other,
    "<": lambda one, other: one < other,
    ">": lambda one, other: one > other,
}
_COMPUTED: dict[str, Callable[[float, float], float]] = {
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
    "/": lambda one, other: one / other if other else float("nan"),
}
_GATHERED: dict[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min}


def labels(**pairs: str) -> Labels:
    """Labels of a series."""
    return frozenset(pairs.items())


def selectors(expression: str) -> Iterator[tuple[str, frozenset[str]]]:
    """The metrics that an expression names, each with the labels that it is chosen by."""
    yield from _selectors(grammar.parse(expression))


def groupings(expression: str) -> frozenset[str]:
    """The labels that an expression groups or matches by."""
    return frozenset(re.findall(r"\w+", " ".join(re.findall(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)", expression))))


def _selectors(node: Any) -> Iterator[tuple[str, frozenset[str]]]:
    match node:
        case grammar.VectorSelector():
            yield node.name or "", frozenset(matcher.name for matcher in node.matchers.matchers)
        case grammar.MatrixSelector():
            yield from _selectors(node.vector_selector)
        case grammar.BinaryExpr():
            yield from _selectors(node.lhs)
            yield from _selectors(node.rhs)
        case grammar.AggregateExpr() | grammar.ParenExpr():
            yield from _selectors(node.expr)
        case grammar.Call():
            for argument in node.args:
                yield from _selectors(argument)


def evaluate(expression: str, series: Series, now_s: float) -> Vector:
    """The series that an expression gives at a time."""
    found = _value(grammar.parse(expression), series, now_s)
    assert isinstance(found, dict)
    return found


def _value(node: Any, series: Series, now_s: float) -> Vector | float:
    match node:
        case grammar.NumberLiteral():
            return float(node.val)
        case grammar.ParenExpr():
            return _value(node.expr, series, now_s)
        case grammar.VectorSelector():
            return {found: of(now_s) for found, of in _chosen(node, series).items()}
        case grammar.AggregateExpr():
            return _aggregated(node, series, now_s)
        case grammar.Call():
            return _called(node, series, now_s)
        case grammar.BinaryExpr():
            return _joined(node, series, now_s)
    raise NotImplementedError(f"{type(node).__name__} is not used by any alert yet: write here what it means")


def _chosen(node: Any, series: Series) -> dict[Labels, Callable[[float], float]]:
    wanted = {(matcher.name, matcher.value) for matcher in node.matchers.matchers}
    assert all(matcher.op == grammar.MatchOp.Equal for matcher in node.matchers.matchers)
    return {has: of for (name, has), of in series.items() if name == node.name and wanted <= has}


def _aggregated(node: Any, series: Series, now_s: float) -> Vector:
    by = set(node.modifier.labels) if node.modifier else set()
    groups: dict[Labels, list[float]] = {}
    inner = _value(node.expr, series, now_s)
    assert isinstance(inner, dict)
    for has, value in inner.items():
        groups.setdefault(frozenset(pair for pair in has if pair[0] in by), []).append(value)
    return {has: _GATHERED[str(node.op)](values) for has, values in groups.items()}


def _called(node: Any, series: Series, now_s: float) -> Vector | float:
    name = node.func.name
    if name == "time":
        return now_s
    if name == "histogram_quantile":
        return _quantiles(node.args[0].val, _value(node.args[1], series, now_s))
    over = node.args[0]
    span_s = over.range.total_seconds()
    found: Vector = {}
    for has, of in _chosen(over.vector_selector, series).items():
        grown = of(now_s) - of(now_s - span_s)
        if name == "predict_linear":
            found[has] = of(now_s) + grown / span_s * node.args[1].val
        else:
            found[has] = grown / span_s if name == "rate" else {"increase": grown, "delta": grown}[name]
    return found


def _quantiles(part: float, buckets: Vector | float) -> Vector:
    assert isinstance(buckets, dict)
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for has, value in buckets.items():
        bound = float(dict(has)["le"])
        groups.setdefault(frozenset(pair for pair in has if pair[0] != "le"), []).append((bound, value))
    found = {}
    for has, steps in groups.items():
        steps.sort()
        wanted = part * steps[-1][1]
        found[has] = next(bound for bound, reached in steps if reached >= wanted) if wanted else float("nan")
    return found


def _joined(node: Any, series: Series, now_s: float) -> Vector:
    left, right, op = _value(node.lhs, series, now_s), _value(node.rhs, series, now_s), str(node.op)
    if isinstance(left, float):
        assert isinstance(right, dict)
        return {has: _COMPUTED[op](left, value) for has, value in right.items()}
    if op == "or":
        assert isinstance(right, dict)
        return right | left
    on = set(node.modifier.matching.labels) if node.modifier and node.modifier.matching else None

    def match(has: Labels) -> Labels:
        return has if on is None else frozenset(pair for pair in has if pair[0] in on)

    others = {match(has): value for has, value in right.items()} if isinstance(right, dict) else None
    found: Vector = {}
    for has, value in left.items():
        if others is not None and match(has) not in others:
            continue
        other = right if isinstance(right, float) else others[match(has)] if others else 0.0
        if op == "and":
            found[has] = value
        elif op in _COMPARED:
            if _COMPARED[op](value, other):
                found[has] = value
        else:
            found[has] = _COMPUTED[op](value, other)
    return found
