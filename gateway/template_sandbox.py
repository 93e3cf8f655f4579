"""Where chat templates run.

Templates come with model files, so they run in a sandbox and within a budget of steps and characters: one that loops
for ever or grows without bound ends with an error. Knows no conversations.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

# Loop rounds and calls of one rendering, about a second's worth. Ten messages need some hundred.
MAX_STEPS = 250_000
# Of JSON that a template writes.
_CHARS_A_STEP = 1024


class OverBudgetError(Exception):
    """A rendering used more than it may."""


class Refusal(jinja2.TemplateError):
    """A template called raise_exception."""


class _Budget:
    """What one rendering may still use."""

    __slots__ = ("max_chars", "steps_left")

    def __init__(self, steps: int, max_chars: int) -> None:
        self.steps_left = steps
        self.max_chars = max_chars

    def spend(self, steps: int = 1) -> None:
        self.steps_left -= steps
        if self.steps_left < 0:
            raise OverBudgetError(f"the template took more than {MAX_STEPS} steps")

    def check_size(self, size: int) -> None:
        if size > self.max_chars:
            raise OverBudgetError(f"a value grew past {self.max_chars} characters or items")

    def check(self, value: Any) -> Any:
        if isinstance(value, (str, list, tuple)):
            self.check_size(len(value))
        return value


_budget: contextvars.ContextVar[_Budget] = contextvars.ContextVar("budget")


@contextlib.contextmanager
def budgeted(max_chars: int) -> Iterator[None]:
    """The scope of one rendering: MAX_STEPS, and values of at most `max_chars` characters or items."""
    token = _budget.set(_Budget(MAX_STEPS, max_chars))
    try:
        yield
    finally:
        _budget.reset(token)


# These make a long text from a short one and a number.
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox with a budget: loops, calls and whatever makes values grow are counted."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(jinja2.nodes.For):
            loop.iter = _filtered(loop.iter, "budgeted_loop")
        _wrap_concatenations(tree)
        return tree

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        budget = _budget.get()
        if operator == "*" and any(isinstance(side, (str, list, tuple)) for side in (left, right)):
            sized, count = (left, right) if isinstance(right, int) else (right, left)
            if isinstance(count, int):
                budget.check_size(len(sized) * max(count, 0))
        if operator == "**" and (not isinstance(right, (int, float)) or abs(right) > 64):
            raise OverBudgetError("an exponent is too large")
        if operator in ("*", "**") and any(isinstance(side, int) and abs(side) > 1 << 64 for side in (left, right)):
            raise OverBudgetError("a number is too large")
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        return budget.check(super().call_binop(context, operator, left, right))

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        budget.spend()
        # The sandbox wraps str.format.
        method = getattr(obj, "__wrapped__", obj)
        target = getattr(method, "__self__", None)
        if isinstance(target, str):
            args = self._check_text_method(target, getattr(method, "__name__", ""), args)
        return budget.check(super().call(context, obj, *args, **kwargs))

    def _check_text_method(self, text: str, name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
        budget = _budget.get()
        if name in _PADDING and any(isinstance(value, int) and value > 4096 for value in args):
            raise OverBudgetError(f"{name} to more than 4096 characters")
        if name == "replace" and len(args) >= 2:
            budget.check_size(len(text) + text.count(str(args[0])) * len(str(args[1])))
        if name in ("format", "format_map"):
            _check_format(text)
        if name == "join" and args:
            items = list(args[0])
            budget.check_size(sum(len(item) + len(text) for item in items if isinstance(item, str)))
            return (items, *args[1:])
        return args


def _check_format(text: str) -> None:
    # "%1000000000d" asks for a gigabyte; no honest width has five digits or comes from an argument.
    if re.search(r"\d{5}|%[^a-zA-Z%]*\*", text):
        raise OverBudgetError("a format asks for too wide a field")


def _replace(text: Any, old: Any, new: Any, count: int = -1) -> str:
    whole, part, other = str(text), str(old), str(new)
    _budget.get().check_size(len(whole) + whole.count(part) * len(other))
    return whole.replace(part, other, -1 if count is None else count)


def _format(text: Any, *args: Any, **kwargs: Any) -> str:
    _check_format(str(text))
    formatted: str = str(text) % (kwargs or args)
    return formatted


def _filtered(node: Any, name: str) -> jinja2.nodes.Filter:
    wrapped = jinja2.nodes.Filter(node, name, [], [], None, None)
    wrapped.set_lineno(node.lineno)
    return wrapped


def _wrap_concatenations(node: jinja2.nodes.Node) -> None:
    """Puts every `a ~ b` under the budget, so that doubling a text in a loop ends."""
    for field, value in node.iter_fields():
        if isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, jinja2.nodes.Node):
                    _wrap_concatenations(item)
                    if isinstance(item, jinja2.nodes.Concat):
                        value[index] = _filtered(item, "budgeted_value")
        elif isinstance(value, jinja2.nodes.Node):
            _wrap_concatenations(value)
            if isinstance(value, jinja2.nodes.Concat):
                setattr(node, field, _filtered(value, "budgeted_value"))


class _Generation(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's text for training; here it only stands for its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 wants a plain set

    def parse(self, parser: Any) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        body: list[jinja2.nodes.Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return body


def make_environment(now: Callable[[], datetime]) -> _Environment:
    """Where the templates of a model run."""
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation], cache_size=0
    )
    environment.filters["tojson"] = _to_json
    environment.filters["budgeted_loop"] = _counted
    environment.filters["budgeted_value"] = lambda value: _budget.get().check(value)
    # Filters that pad or fill, and those for HTML, have no place in a prompt.
    for name in ("batch", "center", "pprint", "slice", "urlize", "wordwrap", "xmlattr"):
        del environment.filters[name]
    environment.filters |= {"format": _format, "indent": _indent, "replace": _replace}
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: now().strftime(str(pattern)[:256])
    del environment.globals["lipsum"]
    return environment


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    budget = _budget.get()
    for item in items:
        budget.spend()
        yield item


def _indent(text: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    margin = width if isinstance(width, str) else " " * min(max(width, 0), 256)
    lines = str(text).split("\n")
    _budget.get().check_size(len(margin) * len(lines))
    indented = [margin + line if line or blank else line for line in lines[1:]]
    return "\n".join([(margin if first else "") + lines[0], *indented])


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    # The filter of jinja2 escapes for HTML; a prompt is none.
    allowed = {key: options[key] for key in ("ensure_ascii", "separators", "sort_keys") if key in options}
    width = min(indent, 16) if indent else indent
    encoder = json.JSONEncoder(**{"ensure_ascii": False, **allowed}, indent=width)
    budget = _budget.get()
    if width is None:
        # At most six times as long as the value; looked at behind.
        text = encoder.encode(value)
        budget.spend(len(text) // _CHARS_A_STEP)
        return str(budget.check(text))
    parts, size = [], 0
    for part in encoder.iterencode(value):
        size += len(part)
        budget.spend()
        budget.check_size(size)
        parts.append(part)
    return "".join(parts)


def _raise_exception(message: Any) -> None:
    raise Refusal(str(message))
