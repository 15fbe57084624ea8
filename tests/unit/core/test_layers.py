"""Tests of the imports in the core: layers know each other only through the stack, and shared modules know no layer."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

from tests.unit.core.stacks import opened
from tutti_gateway.core.protocol.messages import Message

CORE = Path(__file__).resolve().parents[3] / "gateway/tutti_gateway/core"
LAYERS = {"atomic", "flush", "membership", "order", "repair", "lanes"}
SHARED = {"protocol", "view"}  # what every layer may use
ABOVE = {"layers.py", "diagrams.py"}  # wire the layers, and draw them


def layers_seen(path: Path) -> set[str]:
    """The layers that a module imports from."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    found = {module.split(".")[2] for module in modules if module.startswith("tutti_gateway.core.") and module.count(".") > 2}
    return found - SHARED


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_a_module_imports_its_own_layer_and_shared_modules_only(path: Path) -> None:
    if path.parent == CORE or path.parent.name in SHARED:
        assert path.name in ABOVE or not layers_seen(path)
    else:
        assert path.parent.name in LAYERS
        assert layers_seen(path) <= {path.parent.name}


def test_no_modules_of_the_core_import_each_other_in_a_circle() -> None:
    imports: dict[str, set[str]] = {}
    for path in CORE.rglob("*.py"):
        name = ".".join(path.relative_to(CORE.parents[1]).with_suffix("").parts)
        nodes = ast.walk(ast.parse(path.read_text("utf-8")))
        imports[name] = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    assert "tutti_gateway.core.layers" in imports["tutti_gateway.core.stack"]
    TopologicalSorter(imports).prepare()  # raises where there is one, and names it


def test_every_message_has_a_layer_that_it_is_for() -> None:
    _, member = opened()
    assert set(member.stack.layers.handlers()) == set(get_args(Message))
