"""Tests of the core's state tables: they are complete, missing transitions are illegal, and docs/explanation/protocol.md shows
them.
"""

from itertools import product
from pathlib import Path

import pytest

from tutti.errors import InvariantViolated
from tutti_gateway.core.diagrams import page
from tutti_gateway.core.order.batch_admission import ADMISSION, VERDICT, Relation, Seen, Verdict, relation
from tutti_gateway.core.order.received_table import LINE, LineInput, LineState, ProducerLine
from tutti_gateway.core.state_machine import Machine
from tutti_gateway.core.view.phases import LIFE, Phase, Step

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_up_to_date() -> None:
    assert (ROOT / "docs/explanation/protocol.md").read_text("utf-8") == page(), (
        "python -m tutti_gateway.core.diagrams > docs/explanation/protocol.md"
    )


def test_every_case_has_a_decision() -> None:
    assert set(ADMISSION) == set(product((False, True), Relation))
    assert set(VERDICT) == set(product(Seen, Relation))


def test_a_batch_is_accepted_in_one_case_only() -> None:
    assert [case for case, verdict in VERDICT.items() if verdict is Verdict.ORDER] == [(Seen.OPEN, Relation.NEXT)]


@pytest.mark.parametrize(
    ("epoch", "first", "last", "expected"),
    [
        (1, 11, 20, Relation.OLDER),
        (3, 11, 20, Relation.NEWER),
        (2, 1, 10, Relation.COVERED),
        (2, 10, 10, Relation.COVERED),
        (2, 10, 11, Relation.OVERLAP),
        (2, 1, 11, Relation.OVERLAP),
        (2, 11, 11, Relation.NEXT),
        (2, 12, 12, Relation.GAP),
    ],
)
def test_relation_to_a_line_at_epoch_2_sequence_10(epoch: int, first: int, last: int, expected: Relation) -> None:
    assert relation(epoch, first, last, 2, 10) is expected


def test_transitions_missing_in_the_tables_are_illegal() -> None:
    for state, step in product(Phase, Step):
        machine = Machine("test", LIFE, state)
        if (state, step) in LIFE:
            assert machine.on(step) is LIFE[state, step]
        else:
            with pytest.raises(InvariantViolated, match="cannot happen"):
                machine.on(step)
    for line_state, input_ in product(LineState, LineInput):
        line = ProducerLine(1, "p", b"", 1, 0, b"")
        line.state = line_state
        if (line_state, input_) in LINE:
            line.on(input_)
            assert line.state is LINE[line_state, input_]
        else:
            with pytest.raises(InvariantViolated, match="producer 1 is"):
                line.on(input_)


def test_every_state_is_reached_and_only_the_end_is_left_by_nothing() -> None:
    assert set(LIFE.values()) | {Phase.BORN} == set(Phase)
    assert {before for before, _ in LIFE} == set(Phase) - {Phase.STOPPED}
    assert set(LINE.values()) == set(LineState) == {before for before, _ in LINE}
