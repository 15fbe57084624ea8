"""Tutti: atomic multicast as the front door of Spark."""

from __future__ import annotations
