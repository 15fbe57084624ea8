"""State that all layers of one member share: configuration, view, undecided log, and the actions of the current step."""

from __future__ import annotations

from typing import NamedTuple

from tutti_gateway.core.outbox import Outbox
from tutti_gateway.core.pending_window import Window
from tutti_gateway.core.protocol.events import Identity, StackConfig
from tutti_gateway.core.random_source import RandomSource
from tutti_gateway.core.view.view_state import ViewState


class Context(NamedTuple):
    """Objects that all layers of one member share from its start to its stop."""

    config: StackConfig
    view_state: ViewState
    outbox: Outbox
    window: Window
    identity: Identity
    random: RandomSource  # its seed is in the event `Started`, so that the replay of a recording draws the same numbers
