"""Three real gateways that are one group, for tests of clients: any of them is killed, frozen, started again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support.gateway_process import GatewayProcess, Placement
from tests.support.ports import free_base
from tutti.io.admin import AdminClient

NAMES = ("g1", "g2", "g3")
_VIEW_S = 30.0


class RunningGroup:
    """The group; a gateway by its name."""

    def __init__(self, root: Path, more: str = "", each: Callable[[str], str] = lambda _: "") -> None:
        """Write what they are told; `more` is TOML behind the members, of `[group]` first, and `each` what one has for itself."""
        placements = {name: Placement("127.0.0.1", free_base()) for name in NAMES}
        members = ", ".join(f'{name} = "{placement.host}:{placement.port}"' for name, placement in placements.items())
        self.all = {
            name: GatewayProcess(root, name, f"members = {{ {members} }}\n{more}{each(name)}", placement)
            for name, placement in placements.items()
        }

    def __getitem__(self, name: str) -> GatewayProcess:
        return self.all[name]

    @property
    def url(self) -> str:
        """All of them."""
        return "tutti://" + ",".join(f"127.0.0.1:{gateway.port}" for gateway in self.all.values())

    def status(self, name: str) -> dict[str, Any]:
        """What one says of itself."""
        with AdminClient(self[name].url, timeout=20, learn=False) as control:
            return control.status()

    def coordinator(self) -> GatewayProcess:
        """The one that coordinates the view, when there is one that does: who was just started, or cut off, tells of none."""
        deadline = time.monotonic() + _VIEW_S
        while time.monotonic() < deadline:
            for name, gateway in self.all.items():
                if gateway.runs and (coordinator := self.status(name)["view"]["coordinator"]):
                    return self[coordinator]
            time.sleep(0.05)
        raise AssertionError(f"nobody coordinates the group after {_VIEW_S:g} s")

    def start(self) -> Self:
        """All of them, at once: a group begins when all are there."""
        for gateway in self.all.values():
            gateway.start(wait=False)
        for gateway in self.all.values():
            gateway.wait_ready()
        return self

    def __enter__(self) -> Self:
        """Start; where one does not, none is left."""
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        """Whatever happened, leave no process behind."""
        for gateway in self.all.values():
            gateway.__exit__()
