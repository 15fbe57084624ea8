"""Generates docs/reference/api.md from the docstrings and signatures of the public classes of `tutti`."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

MADE = "<!-- Generated from the code by python -m tutti_gateway.cli.reference. Do not edit: changes are overwritten. -->\n"
_INTRODUCTION = """\
The public library, `from tutti import ...`. [clients.md](../how-to/clients.md) shows its use. Every other module is
internal, and changes without notice.
"""
_SECTION = re.compile(r"^(Args|Attributes|Returns|Raises)(?: \(.*\))?:$")
_QUOTED = re.compile(r"'([^'\"]*)'|\"([^\"]*)\"")


def api_page(module: ModuleType) -> str:
    """Return the text of api.md: the classes in the module's `__all__`, and a table of the error classes.

    Raises:
        LookupError: a public class or one of its public members has no docstring.
    """
    kinds = [getattr(module, name) for name in module.__all__]
    errors = [kind for kind in kinds if issubclass(kind, Exception)]
    parts = [f"# Python\n\n{MADE}\n{_INTRODUCTION}"]
    for kind in kinds:
        if kind not in errors:
            parts.extend(_class(kind))
    parts.append("## Errors\n\nAll derive from `tutti.TuttiError`. A command that ends with the error has the exit code shown.\n")
    parts.append("| error | is a | exit code | meaning |\n|---|---|---|---|")
    for kind in sorted(errors, key=lambda error: (error.__name__ != "TuttiError", error.__name__)):
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        parts.append(
            f"| `{kind.__name__}` | {bases} | {kind.exit_code} | {' '.join(_docstring(kind).split()).replace('|', chr(92) + '|')} |"
        )
    return "\n".join(parts) + "\n"


def _class(kind: type) -> Iterator[str]:
    if issubclass(kind, tuple):  # for a named tuple, only the fields are documented
        yield f"## `{kind.__name__}`\n\n{_docstring(kind)}\n"
        yield "\n".join(f"- `{name}: {_type(of)}`" for name, of in kind.__annotations__.items()) + "\n"
        return
    if dataclasses.is_dataclass(kind):  # for statistics, the metadata documents each field
        yield f"## `{kind.__name__}`\n\n{_docstring(kind)}\n"
        yield "\n".join(map(_field, dataclasses.fields(kind))) + "\n"
        return
    made = f"\n\n    {kind.__name__}{_signature(kind.__init__)}" if _made_by_users(kind) else ""
    yield f"## `{kind.__name__}`{made}\n\n{_text(_docstring(kind))}\n"
    for name, found in vars(kind).items():
        member = inspect.unwrap(found) if callable(found) else found  # only the wrapped method has the docstring
        if name.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        call = _signature(member) if inspect.isfunction(member) else _returns(member)
        awaited = "await " if inspect.iscoroutinefunction(member) else ""
        yield f"### `{kind.__name__}.{name}`\n\n    {awaited}{name}{call}\n\n{_text(_docstring(member))}\n"


def _field(field: dataclasses.Field[Any]) -> str:
    found = field.metadata
    kind = ", ".join(found[name] for name in ("kind", "unit") if found.get(name))
    return f"- `{field.name}: {_type(field.type)}`{f' ({kind})' if kind else ''}: {found['about']}"


def _made_by_users(kind: type) -> bool:
    return not getattr(kind, "_is_protocol", False) and "batch" not in inspect.signature(kind).parameters


def _docstring(what: Any) -> str:
    text = inspect.getdoc(what)
    if not text:
        raise LookupError(f"{what!r} is public and has no docstring")
    return text


def _signature(function: Any) -> str:
    found = inspect.signature(function)
    parameters = [one for one in found.parameters.values() if one.name != "self"]
    text = str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))
    result = "" if found.return_annotation in ("None", None, inspect.Signature.empty) else f" -> {_type(found.return_annotation)}"
    return _QUOTED.sub(_unquoted, text) + result


def _unquoted(found: re.Match[str]) -> str:
    """Return the matched text, without its quotes if it is an annotation, or unchanged if it is the default of an argument."""
    before = found.string[: found.start()]
    return (found[1] or found[2]) if before.endswith(": ") else found[0]


def _returns(member: property) -> str:
    return f": {_type(inspect.signature(member.fget).return_annotation)}" if member.fget is not None else ""


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__forward_arg__", str(annotation))


def _text(doc: str) -> str:
    """Return a docstring as Markdown. The sections Args, Attributes, Returns and Raises become lists."""
    return "\n".join(_lines(doc.splitlines()))


def _lines(lines: list[str]) -> Iterator[str]:
    listed = section_named = False
    for line in lines:
        section = _SECTION.match(line)
        if section:
            listed, section_named = True, section[1] != "Returns"
            yield f"**{line.removesuffix(':')}**\n"
        elif listed and line.startswith("    ") and not line.startswith("     "):
            name, colon, text = line.strip().partition(": ")
            yield f"- `{name}`: {text}" if colon and section_named else line.strip()
        elif listed and line.startswith("     "):
            yield f"  {line.strip()}"
        else:
            listed = listed and not line
            yield line
