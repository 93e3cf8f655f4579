"""How families of models write calls of tools."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes calls: `opener`, then `list_begin` if it has one, then a call, others each behind
    one of `separators`, then `closer`. With `bare` an answer may also begin with a call, and one may follow another."""

    name: str
    opener: str
    list_begin: str = ""
    separators: str = ""
    closer: str = ""
    bare: bool = False
    # What it calls the arguments of a call.
    arguments: str = "arguments"

    @property
    def markers(self) -> tuple[str, ...]:
        """What may be a special token of the model."""
        return self.opener, self.closer


HERMES = ToolFormat("hermes", "<tool_call>", closer="</tool_call>")
LLAMA3_JSON = ToolFormat("llama3_json", "<|python_tag|>", separators=";,", bare=True, arguments="parameters")
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", list_begin="[", separators=",", closer="]")
TOOL_FORMATS = {each.name: each for each in (HERMES, LLAMA3_JSON, MISTRAL)}


def format_of(template: str) -> ToolFormat | None:
    """The format that a chat template asks its model for, None if it is none of these."""
    if "<tool_call>" in template:
        # Others put their own language between the same words.
        return None if "<function=" in template or "<arg_key>" in template else HERMES
    if "[TOOL_CALLS]" in template:
        return None if "[ARGS]" in template else MISTRAL
    if "<|start_header_id|>" in template and '"parameters"' in template:
        return LLAMA3_JSON
    return None
