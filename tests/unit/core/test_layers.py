"""Proves that the core's layers know of each other what the stack says, and that the modules they share know none of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[3] / "gateway/core"
LAYERS = {"atomic", "flush", "membership", "order", "repair", "unordered"}
ABOVE = {"stack.py", "diagrams.py"}  # wire the layers, and draw them


def layers_seen(path: Path) -> set[str]:
    """The layers that a module imports from."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {module.split(".")[2] for module in modules if module.startswith("gateway.core.") and module.count(".") > 2}


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_a_module_sees_its_own_layer_and_what_all_share(path: Path) -> None:
    if path.parent == CORE:
        assert path.name in ABOVE or not layers_seen(path)
    else:
        assert path.parent.name in LAYERS
        assert layers_seen(path) <= {path.parent.name}
