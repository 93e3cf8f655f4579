"""Plans wherever something has changed."""

from __future__ import annotations

from .actions import Action, NewSequence, ToWorker
from .dispatch import dispatch
from .placement import CachedTokens
from .policy import Policy
from .pool import Pool
from .state import MeshState


def plan_pools(mesh: MeshState, policy: Policy, lookup: CachedTokens, now: float) -> None:
    """Of all pools about which something changed. `lookup` says how much of a sequence a worker's prefix cache has."""
    dirty, mesh.dirty = mesh.dirty, {}
    for pool in dirty.values():
        actions = dispatch(pool, policy, now, lookup)
        _note_starts(mesh, pool, actions, now)
        mesh.actions += actions


def _note_starts(mesh: MeshState, pool: Pool, actions: list[Action], now: float) -> None:
    """How fast its queue moves."""
    started = [
        mesh.sequences[action.command.sequence_id].request.traffic_class.name
        for action in actions
        if isinstance(action, ToWorker) and isinstance(action.command, NewSequence)
    ]
    if started:
        mesh.note_starts(pool, started, now)
