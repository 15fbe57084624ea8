"""A group of three gateway processes, each of which a test kills, suspends or starts again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support.gateway_process import GatewayProcess, Placement
from tests.support.ports import free_base

NAMES = ("g1", "g2", "g3")
_VIEW_S = 30.0


class RunningGroup:
    """The group; `group["g1"]` is one gateway."""

    def __init__(self, root: Path, more: str = "", each: Callable[[str], str] = lambda _: "") -> None:
        """Write the configurations; `more` is TOML that continues `[group]`, and `each` returns more of it for one gateway."""
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
        """The address of all gateways."""
        return "tutti://" + ",".join(f"127.0.0.1:{gateway.port}" for gateway in self.all.values())

    def status(self, name: str) -> dict[str, Any]:
        """Return the status document of one gateway."""
        return self[name].status()

    def coordinator(self) -> GatewayProcess:
        """Return the coordinator of the view. A gateway that has just started or is disconnected does not know one."""
        deadline = time.monotonic() + _VIEW_S
        while time.monotonic() < deadline:
            for name, gateway in self.all.items():
                if gateway.runs and (coordinator := self.status(name)["view"]["coordinator"]):
                    return self[coordinator]
            time.sleep(0.05)
        raise AssertionError(f"no gateway knows a coordinator after {_VIEW_S:g} s")

    def start(self) -> Self:
        """Start all gateways at once, because a new group waits for all its members."""
        for gateway in self.all.values():
            gateway.start(wait=False)
        for gateway in self.all.values():
            gateway.wait_ready()
        return self

    def __enter__(self) -> Self:
        """Start all; if one fails, kill the others."""
        try:
            return self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        """Kill all gateways that still run."""
        for gateway in self.all.values():
            gateway.__exit__()
