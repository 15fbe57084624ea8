"""What all layers of one member share: its configuration, its standing among views, its log's end, and the step under way."""

from __future__ import annotations

from typing import NamedTuple

from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.protocol.events import Identity, StackConfig
from tutti_gateway.core.random_source import Chance
from tutti_gateway.core.view.view_state import Standing
from tutti_gateway.core.window import Window


class Context(NamedTuple):
    """One for a member, for its whole run."""

    config: StackConfig
    standing: Standing
    outbox: Outbox
    window: Window
    identity: Identity
    random: Chance  # of the run's entropy: a recorded run replays
