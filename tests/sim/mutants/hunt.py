"""Looks for one mutant: seed after seed until a promise breaks that the real code keeps in the same run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass

from tests.sim.mixes import Mix
from tests.sim.mutants.catalogue import by_name
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.patch import DoesNotApply, Value, applied
from tests.sim.mutants.watch import watch
from tests.sim.run import Result, Run
from tutti import limits as common_limits
from tutti_gateway.core import limits

BROKEN = ("NameError", "UnboundLocalError", "AttributeError", "TypeError")  # a mutant that does not even run


@dataclass
class Catch:
    """What came of it.

    Attributes:
        violation: what the mutant did that may never happen; empty if nothing was seen.
        seeds: runs of the mutant. failed: those that broke what the real code breaks too, or what is not its rule.
        cpu_s: of all of it. why: it was not found, if that is known.
    """

    name: str
    violation: str = ""
    seeds: int = 0
    failed: int = 0
    cpu_s: float = 0.0
    why: str = ""

    @property
    def found(self) -> bool:
        """True if the simulator or the named test found it: a promise broke, not the code of the mutant."""
        broken = any(f"{how} {error}" in self.violation for how in ("raises", ":") for error in BROKEN)
        return bool(self.violation) and not broken


def play(mix: Mix, seed: int) -> Result:
    """One run of the code as it is now."""
    with applied(
        [Value(common_limits if hasattr(common_limits, name) else limits, name, value) for name, value in mix.bounds.items()]
    ):
        run = Run(mix.options(seed))
        watch(run)
        if mix.script is not None:
            mix.script(run)
        return run.play()


def hunt(mutant: Mutant, seconds: float = 30.0, seeds_max: int = 100_000, first: int = 1) -> Catch:
    """Run seeds from `first` on, until one shows the mutant, for so many seconds of CPU at most."""
    catch = Catch(mutant.name)
    began = time.process_time()
    if mutant.proof:
        _prove(mutant, catch)
        return catch
    seed = first
    while catch.seeds < seeds_max and time.process_time() - began < seconds:
        with mutant.applied():
            violation = play(mutant.mix, seed).violation
        catch.seeds += 1
        if violation:
            if _shows(mutant, violation) and not play(mutant.mix, seed).violation:
                catch.violation = violation
                break
            catch.failed += 1
        seed += 1
    catch.cpu_s = time.process_time() - began
    return catch


def _shows(mutant: Mutant, violation: str) -> bool:
    return any(word in violation for word in mutant.shows.split("|"))


def hunt_by_name(name: str, seconds: float, first: int) -> Catch:
    """The same in another process; a mutant that does not apply is not found."""
    try:
        return hunt(by_name(name), seconds, first=first)
    except DoesNotApply as error:
        return Catch(name, why=f"it does not apply: {error}")


def _prove(mutant: Mutant, catch: Catch) -> None:
    """The test passes, and fails with the mutant. It has a process of its own."""
    began = os.times()
    command = [sys.executable, "-m", "tests.sim.mutants.proof", mutant.name, mutant.proof]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        catch.failed += ended.returncode > 1
        catch.why = (ended.stdout + ended.stderr).strip().rpartition("\n")[2]
    else:
        failure = next((line for line in ended.stdout.splitlines() if line.startswith("E  ")), "E  it fails")
        catch.violation = f"{mutant.proof.rpartition('::')[2]}: {failure[1:].strip()}"
    now = os.times()
    catch.cpu_s = now.children_user + now.children_system - began.children_user - began.children_system
