"""Proves that every mutant is of the code as it is, that the easy ones are found at once, and that the code itself passes there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.sim.mutants.catalogue import MUTANTS, by_name
from tests.sim.mutants.hunt import Catch, hunt, play
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.patch import DoesNotApply, Edit, Entry, applied
from tutti_gateway.core.atomic.layer import Atomic
from tutti_gateway.core.order.batch_admission import VERDICT

SEEDS = 3
ROOT = Path(__file__).parents[3]


def test_there_are_enough_mutants_with_unique_names() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 50
    assert all(mutant.rule and mutant.section for mutant in MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_applies_to_the_code_as_it_is(mutant: Mutant) -> None:
    functions = [change.function() for change in mutant.changes if isinstance(change, Edit)]
    before = [function.__code__ for function in functions]
    with mutant.applied():
        assert all(function.__code__ is not code for function, code in zip(functions, before, strict=True))
    assert [function.__code__ for function in functions] == before


def test_a_proof_names_an_existing_test() -> None:
    proofs = [mutant.proof.split("::") for mutant in MUTANTS if mutant.proof]
    absent = [name for path, name in proofs if f"def {name.partition('[')[0]}(" not in (ROOT / path).read_text("utf-8")]
    assert absent == []


def test_the_words_of_a_mutant_are_those_of_a_violation() -> None:
    """A violation with other words would not be counted, so the mutant would never be found."""
    texts = []
    for path in (path for folder in ("tests/sim", "gateway", "tutti") for path in sorted((ROOT / folder).rglob("*.py"))):
        if path.parent != Path(__file__).parent or path.name in ("scripts.py", "scenes.py", "watch.py"):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    texts.append("".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values))
                elif isinstance(node, ast.Constant):
                    texts.append(str(node.value))
    said = "\n".join(texts)
    assert [word for mutant in MUTANTS for word in mutant.shows.split("|") if word not in said] == []


def test_a_patch_of_absent_code_does_not_apply() -> None:
    for change in (Edit(Atomic, "write", "no such line", ""), Edit(Atomic, "none", "", ""), Entry(VERDICT, "none", 1)):
        with pytest.raises(DoesNotApply), applied([change]):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("name", [mutant.name for mutant in MUTANTS if mutant.quick])
def test_the_simulator_finds_an_easy_mutant_at_once(name: str) -> None:
    catch = hunt(by_name(name), seeds_max=SEEDS)
    assert catch.found, catch


@pytest.mark.parametrize(
    ("violation", "found"),
    [
        ("", False),
        ("g1 raises NameError at Received: name 'x' is not defined", False),
        ("test_x: NameError: name 'x' is not defined", False),
        ("g1 raises InvariantViolated at Received: no", True),
        ("test_x: assert 1 == 2", True),
    ],
)
def test_a_mutant_that_does_not_even_run_is_not_found(violation: str, found: bool) -> None:
    assert Catch("", violation).found is found


def test_unchanged_code_is_not_a_find() -> None:
    mutant = by_name("vote-before-fsync")
    assert [play(mutant.mix, seed).violation for seed in range(1, SEEDS + 1)] == [""] * SEEDS
    nothing = Mutant("nothing", "", "", [])
    assert not hunt(nothing, seeds_max=SEEDS).found
