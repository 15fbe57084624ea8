"""Generate docs/explanation/protocol.md from the tables of the core: `python -m tutti_gateway.core.diagrams`.

A test fails if that file differs from the output of this module.
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import get_args

from tutti_gateway.core.lanes import phases
from tutti_gateway.core.order.batch_admission import ADMISSION, VERDICT, Relation
from tutti_gateway.core.order.received_table import LINE, LineState
from tutti_gateway.core.pending_window import CommitStage
from tutti_gateway.core.protocol.actions import Action
from tutti_gateway.core.protocol.events import Event
from tutti_gateway.core.protocol.messages import Message
from tutti_gateway.core.state_machine import Input, State
from tutti_gateway.core.view.phases import LIFE, Phase

INTRODUCTION = """\
# The protocol as the core runs it

`python -m tutti_gateway.core.diagrams` generates this page from the tables in `gateway/tutti_gateway/core`. A test fails if the
page is out of date. A transition that is not in a table is a defect, and the member stops. The NOTES.md of each layer's folder
(`repair`, `membership`, `flush`, `order`, `atomic`, `lanes`) explains how the layer works. The files in `tests/transcripts/`
show the actions that follow from each event.
"""


def page() -> str:
    """Return the whole page as Markdown."""
    return "\n".join(
        [
            INTRODUCTION,
            "## A member from start to stop (*flush*)\n",
            "A promise or an acceptance takes effect only when the disk has reported it as durable.\n",
            state_diagram(LIFE, Phase.BORN),
            "## A producer's entry at the end of the log (*order*)\n",
            state_diagram(LINE, LineState.OPENING),
            "## What a gateway does with a batch that a client submits (*order*)\n",
            "The gateway's decided log determines the action. Each column is a relation of the batch to its producer's entry in "
            "that log.\n",
            decision_table({("closed by an abort" if closed else "open", how): what for (closed, how), what in ADMISSION.items()}),
            "## What the coordinator does with a batch that is forwarded to it (*order*)\n",
            "The end of the coordinator's log determines the action, undecided frames included. *The log answers* means that the "
            "origin answers its client when the reason is decided in the origin's own log.\n",
            decision_table({(state.value, how): what for (state, how), what in VERDICT.items()}),
            "## The stages of a position (*atomic*)\n",
            "A member stores the last position that has reached each stage. No stage passes the position of the stage before it.\n",
            stages(),
            "## The attempts of a lane (*unordered*)\n",
            "A new attempt begins only when the end of the previous attempt is durable. The end of an attempt is the origin's NO "
            "to all frames that the origin has not written. A new attempt is due when the members change, when one of them votes "
            "NO, or when all frames of a resumed attempt are decided.\n",
            state_diagram(phases.ATTEMPT, phases.Phase.NONE),
            "## Events, actions and messages\n",
            catalogue("Events", "gateway/tutti_gateway/core/protocol/events.py", get_args(Event)),
            catalogue(
                "Actions, in the order within a step",
                "gateway/tutti_gateway/core/protocol/actions.py",
                get_args(Action),
            ),
            catalogue("Messages between members", "gateway/tutti_gateway/core/protocol/messages.py", get_args(Message)),
        ]
    )


def state_diagram(table: Mapping[tuple[State, Input], State], start: State) -> str:
    """Return a Mermaid state diagram of a state table."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start.name}"]
    used = {state for (before, _), after in table.items() for state in (before, after)}
    lines += [f"    {state.name}: {state.value}" for state in type(start) if state in used]
    arrows: dict[tuple[State, State], list[str]] = {}
    for (before, input_), after in table.items():
        arrows.setdefault((before, after), []).append(str(input_.value))
    lines += [f"    {before.name} --> {after.name}: {' / '.join(inputs)}" for (before, after), inputs in arrows.items()]
    left = {before for before, _ in table}
    lines += [f"    {state.name} --> [*]" for state in type(start) if state in used and state not in left]
    return "\n".join([*lines, "```", ""])


def decision_table(table: Mapping[tuple[str, Relation], enum.Enum]) -> str:
    """Return a Markdown table with one row for each state and one column for each relation of a batch to its producer's entry."""
    states = list(dict.fromkeys(state for state, _ in table))
    lines = [
        "| epoch | " + " | ".join(how.value for how in Relation) + " |",
        "|---" * (1 + len(Relation)) + "|",
    ]
    rows = [f"| {state} | " + " | ".join(str(table[state, how].value) for how in Relation) + " |" for state in states]
    return "\n".join([*lines, *rows, ""])


def stages() -> str:
    """Return a Mermaid flowchart of the stages of a position."""
    chain = " --> ".join(f"{stage.name}([{stage.name.lower()}])" for stage in CommitStage)
    return "\n".join(["```mermaid", "flowchart LR", f"    {chain}", "```", ""])


def catalogue(title: str, path: str, kinds: tuple[type, ...]) -> str:
    """Return one line for each struct: its name, its fields, and the first paragraph of its docstring."""
    return "\n".join([f"**{title}** (`{path}`)\n", *_entries(kinds), ""])


def _entries(kinds: tuple[type, ...]) -> Iterator[str]:
    for kind in kinds:
        fields = ", ".join(kind.__struct_fields__)  # type: ignore[attr-defined]  # each kind is a msgspec.Struct
        text = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
        yield f"- `{kind.__name__}({fields})` {text}"


if __name__ == "__main__":
    sys.stdout.write(page())
