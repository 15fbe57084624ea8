"""What a run is: from the seed and these options everything follows."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from tutti_gateway.core.protocol.events import StackConfig

#: Every kind of fault, and what it does.
FAULTS = {
    "loss": "messages are lost, for a while",
    "twice": "messages come twice, perhaps much later",
    "disorder": "messages overtake each other",
    "cut": "one direction between two gateways",
    "split": "the group falls into two parts",
    "churn": "one split after the other, each for a moment",
    "triangle": "two gateways do not hear each other, all others hear both",
    "flap": "a pair that comes and goes",
    "clog": "a pair's messages wait, and then come all at once",
    "narrow": "little bandwidth",
    "broken": "a connection breaks and is told as broken",
    "kill": "a process is killed; the page cache stays",
    "snipe": "a process is killed in the middle of a step, where it matters",
    "power": "one gateway loses its power, and what was not synced",
    "blackout": "all of them do, at once",
    "pause": "a process is stopped and goes on later",
    "slow": "a disk's syncs take long",
    "stall": "a disk does nothing for seconds",
    "error": "a sync fails",
    "low": "a disk runs low",
    "full": "a disk takes no batches",
    "rot": "synced frames cannot be read any more",
    "ends": "the end of a gateway's own lane cannot be read any more",
    "exchange": "a lane's end is lost, and a member of its last attempt has another disk; who learned the end is away",
    "wipe": "a disk is replaced by a blank one",
    "clocks": "monotonic clocks run at different rates, wall clocks jump",
    "leave": "a gateway is stopped in order, and comes back",
    "roster": "an operator adds and removes gateways",
    "rival": "a producer runs twice with one name",
    "restart": "a producer's process is started again",
    "forget": "an operator has a producer forgotten",
    "estranged": "a client cannot reach one gateway",
    "trim": "the oldest part of the log is to go",
    "gather": "gateways take what comes within a moment at once",
    "again": "an operator removes a gateway and adds the same one again, as it runs or after a stop",
    "back": "a named reader goes back, or commits less than it did and does not say so",
    "two": "an operator removes gateways of a small group down to one, and adds them again",
    "hasty": "an operator asks to add a removed gateway again at once, before it knows that it was removed",
}


@dataclass(frozen=True)
class Options:
    """One run.

    Attributes:
        members: gateways of the group at the start.
        seconds: of the part with faults, virtual.
        faults: which ones happen. pace: mean seconds between two faults of a kind.
        latency: "lan", "wan" or "edge" (near the boot period).
        producers: how many, each with `rate` batches a second, up to `pipeline` at a time. readers: named ones that commit offsets.
        unordered: producers that send into lanes. stagers, committers: producers of transactions, `rate` batches a second each.
        indexes: whether readers have frontiers confirmed.
        sync_us: what a sync takes, about.
        config: of the stacks.
        mix: the named mix that it is of (`mixes.py`), empty for the swarm.
    """

    seed: int
    members: int = 3
    seconds: float = 60.0
    faults: frozenset[str] = frozenset()
    pace: float = 8.0
    latency: str = "lan"
    producers: int = 3
    rate: float = 5.0
    pipeline: int = 4
    readers: int = 1
    unordered: int = 0
    stagers: int = 0
    committers: int = 0
    indexes: bool = False
    sync_us: float = 800.0
    config: StackConfig = field(default_factory=StackConfig)
    mix: str = ""

    @property
    def stack(self) -> StackConfig:
        """What stacks are told: they keep lanes only if anybody uses them, and are what they always were if not."""
        return replace(self.config, lanes=self.unordered > 0)

    def command(self, drawn: Options) -> str:
        """How the same run is had again from a shell; `drawn` is what the seed and the mix alone say."""
        words = [f"python -m tests.sim --seed {self.seed}"]
        if self.mix:
            words.append(f"--mix {self.mix}")
        if self.members != drawn.members:
            words.append(f"--members {self.members}")
        if self.seconds != drawn.seconds:
            words.append(f"--minutes {self.seconds / 60!r}")
        counts = ("producers", "readers", "unordered", "stagers", "committers", "pipeline")
        words += [f"--{name} {getattr(self, name)}" for name in counts if getattr(self, name) != getattr(drawn, name)]
        if self.faults != drawn.faults:
            words += [f"--only {fault}" for fault in sorted(self.faults) or ["none"]]
        return " ".join([*words, "--no-shrink"])
