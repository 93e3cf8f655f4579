"""Which classes a plan log may hold, and what of their objects: counts instead of tokens, nothing of prompts.

A class that is not defined in one of the modules below is no part of the core's state, and is refused by name.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from operator import attrgetter
from typing import Any

from tercet import mean, retry

from .. import (
    actions,
    admission,
    alarms,
    calibration,
    cancel_trail,
    core,
    core_settings,
    events,
    fairness,
    first_step,
    fleet,
    foresight,
    inflow,
    lifecycle,
    membership,
    outlook,
    output_length,
    owed_waits,
    placement,
    plan_length,
    planner,
    planner_view,
    policy,
    pool,
    preemption,
    prefix_index,
    progress,
    quota,
    sequence,
    start_pace,
    state,
    step_time,
    tenant,
    tenants,
    traffic,
    traffic_class,
    usage,
    waiting,
    window,
    worker,
)
from .. import credits as credit_ledger

_MODULES = (
    actions,
    admission,
    calibration,
    cancel_trail,
    alarms,
    core,
    core_settings,
    credit_ledger,
    owed_waits,
    events,
    fairness,
    first_step,
    fleet,
    foresight,
    inflow,
    lifecycle,
    mean,
    membership,
    outlook,
    output_length,
    placement,
    plan_length,
    planner,
    planner_view,
    policy,
    pool,
    preemption,
    prefix_index,
    progress,
    quota,
    retry,
    sequence,
    start_pace,
    state,
    step_time,
    tenant,
    tenants,
    traffic,
    traffic_class,
    usage,
    waiting,
    window,
    worker,
)

# Of these fields only the length is kept; they come back as zeros. By name, so that no new class can forget it.
_COUNTED_SUFFIX = "token_ids"
_COUNTED = frozenset({"removed", "stored"})
# These come back empty: they are made of tokens, or of whose they are.
BLANK: Mapping[str, Any] = types.MappingProxyType(
    {
        "logprobs": (),
        "prompt_logprobs": (),
        "penalties": b"",
        "grammar": b"",
        "prefix_salt": b"",
        "stop_token_id": 0,
        "prefix_keys": None,
    }
)
BLANK_SETS = frozenset({"prefixes"})
# All that is in these are keys of blocks, which are made of tokens, or counts that decide nothing.
BLANK_CLASSES = frozenset({prefix_index.PromisedPrefixes, traffic.Traffic})
# The attribute of the core that is no state of it: whom it asks.
LOOKUP = "_lookup"

ATOMS = frozenset({type(None), bool, int, float, str, bytes})


class UnknownClassError(Exception):
    """A bug: the core's state has an object of a class that the plan log does not know."""

    def __init__(self, cls: type) -> None:
        super().__init__(f"{cls.__module__}.{cls.__qualname__} is not among the classes of a plan log")


class Shape:
    """How the objects of one class are written.

    `inline`: they never change and have no identity, so they are written where they are used. `plain`: their fields
    can be kept as they are, since none of them can change, or has to be hidden. Indices of fields: of the `counted`
    only the length is kept, of the `blank` nothing, `hidden` names both; the `open` are the others that are not plain,
    and `kept` names those that are. `lists` are the counted ones that are no tuples.
    """

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.name = cls.__name__
        self.enum = issubclass(cls, Enum)
        self.inline = is_inline(cls)
        self.fields = names = () if self.enum or cls in BLANK_CLASSES else _fields_of(cls)
        hints = hints_of(cls)
        self.counted = tuple(index for index, name in enumerate(names) if is_counted(name))
        self.lists = frozenset(index for index in self.counted if typing.get_origin(hints.get(names[index])) is list)
        self.blank = tuple(index for index, name in enumerate(names) if is_blank(name))
        self.open = tuple(
            index
            for index, name in enumerate(names)
            if not is_counted(name) and not is_blank(name) and not is_plain(hints.get(name))
        )
        self.plain = self.enum or (self.inline and not self.counted and not self.blank and not self.open)
        self.hidden = tuple(names[index] for index in (*self.counted, *self.blank))
        self.read = _reader(names)
        special = {*self.counted, *self.blank, *self.open}
        self.kept = tuple(name for index, name in enumerate(names) if index not in special)
        self.read_kept = _reader(self.kept)


_shapes: dict[type, Shape] = {}


def is_blank(name: str) -> bool:
    """Whether nothing of a field is written."""
    return name in BLANK or name in BLANK_SETS


def is_counted(name: str) -> bool:
    """Whether only the length of a field is written."""
    return name.endswith(_COUNTED_SUFFIX) or name in _COUNTED


def shape_of(cls: type) -> Shape:
    """Raises UnknownClassError."""
    shape = _shapes.get(cls)
    if shape is not None:
        return shape
    if CLASSES.get(cls.__name__) is not cls:
        raise UnknownClassError(cls)
    shape = _shapes[cls] = Shape(cls)
    return shape


def is_plain(hint: Any) -> bool:
    """Whether a value of that type never changes and may be kept as it is; False for a type that says too little."""
    if hint in ATOMS:
        return True
    origin = typing.get_origin(hint)
    if origin is tuple or origin is typing.Union or origin is types.UnionType:
        return all(each is ... or is_plain(each) for each in typing.get_args(hint))
    # Not by shape_of for what is not inline: such classes refer to each other.
    return isinstance(hint, type) and CLASSES.get(hint.__name__) is hint and is_inline(hint) and shape_of(hint).plain


def is_inline(cls: type) -> bool:
    """Whether objects of the class never change, so that only their content counts."""
    return issubclass(cls, (Enum, tuple)) or (dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Reads these fields of an object at once."""
    return attrgetter(*names) if len(names) > 1 else lambda value: tuple([getattr(value, name) for name in names])


def _fields_of(cls: type) -> tuple[str, ...]:
    if issubclass(cls, tuple):
        return tuple(cls._fields)  # type: ignore[attr-defined]
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return tuple(name for name in hints_of(cls) if name != LOOKUP)  # type: ignore[arg-type]  # a class can be hashed


@functools.cache
def hints_of(cls: type) -> dict[str, Any]:
    """The declared types of an object's fields, as far as they are declared on its class."""
    try:
        return typing.get_type_hints(cls)
    except NameError:
        # A name that only type checkers see: nothing is taken for plain then.
        return {}


CLASSES: Mapping[str, type] = types.MappingProxyType(
    {
        name: cls
        for module in _MODULES
        for name, cls in vars(module).items()
        if isinstance(cls, type) and cls.__module__ == module.__name__ and not issubclass(cls, BaseException)
    }
)
