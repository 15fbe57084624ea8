"""Proves that a member which is behind by more than may ever be undecided catches up within a view change, at both edges."""

import pytest

from tests.transcripts.whole_script import WholeScript
from tutti import limits as common_limits
from tutti_gateway.core import limits


@pytest.mark.parametrize("behind", [395, 401, 405, 421, 600, 1500])
def test_a_majority_with_a_lagging_member_forms_a_view(behind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_limits, "UNDECIDED_FRAMES_MAX", 400)
    bounds = {"WINDOW_MORE_FRAMES": 20, "BATCH_UNDECIDED_FRAMES_MAX": 100, "REQUEST_UNDECIDED_FRAMES_MAX": 200}
    for name, bound in bounds.items():
        monkeypatch.setattr(limits, name, bound)
    script = WholeScript()
    script.run("quiet\ngateways g1 g2 g3\nuntil primary g1 g2 g3\nclient g1 s1 ewr\nkill g3\nuntil primary g1 g2\n----\n")
    for first in range(1, behind + 1, 50):
        words = " ".join(f"{sequence}+1" for sequence in range(first, min(first + 50, behind + 1)))
        script.run(f"submit g1 s1 p1/1 {words} body=x\nsettle\n----\n")
    script.run("kill g1\nbeats 30\nstart g3\nuntil primary g2 g3\nsettle\n----\n")
    members = script.world.members
    assert members["g3"].frontier == members["g2"].frontier > behind
    assert not script.problems
