"""A model as the gateway serves it: its names, its limits, and text to tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tercet.errors import ConfigError, InvalidFieldError, ModelNotFoundError
from tercet.model_source import fingerprint, resolve_model
from tercet.sections import ModelSettings

from .chat import Chat
from .model_files import SamplingDefaults, read_model_files
from .template import FIELD, ChatTemplate
from .tokenizer import Tokenizer
from .tool_format import TOOL_FORMATS, ToolFormat, format_of

# Put inside special tokens that a chat spells out, so that the template cannot make them real. A noncharacter:
# no text needs it.
_BREAK = "\ufdd0"
_MAX_NAMES_SHOWN = 16


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model. `served_names` has the canonical name first; `max_model_len` counts prompt and generated tokens.
    `tool_template` is for chats with tools, where the model has one of its own for these; `tool_format` is how it
    writes calls, None if that is not known."""

    served_names: tuple[str, ...]
    revision: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    tool_template: ChatTemplate | None
    tool_format: ToolFormat | None
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    sampling: SamplingDefaults

    @property
    def name(self) -> str:
        """The canonical name."""
        return self.served_names[0]

    def encode_chat(
        self, chat: Chat, *, max_chars: int, check: Callable[[int], None] = lambda _: None
    ) -> tuple[str, list[int]]:
        """The text of a chat's prompt, and its token ids. Raises InvalidFieldError on `chat`, and what `check` raises
        for the least number of tokens that the text may have, before any is looked for.

        What a chat says stays text: a special token spelt out in it does not become that token, so no one can end
        their turn and speak as someone else. Those the template writes are real.
        """
        rendered = self.render_chat(chat, max_chars=max_chars)
        check(self.tokenizer.least_tokens(rendered.replace(_BREAK, "")))
        if _BREAK not in rendered:
            return rendered, self.tokenizer.encode(rendered, add_bos=False)
        ids: list[int] = []
        for text, token_id in self.tokenizer.split_special(rendered):
            if token_id is None:
                ids += self.tokenizer.encode_literal(text.replace(_BREAK, ""))
            else:
                ids.append(token_id)
        return rendered.replace(_BREAK, ""), ids

    def render_chat(self, chat: Chat, *, max_chars: int) -> str:
        """What a chat's prompt is tokenized from, no shorter than its text. Raises InvalidFieldError on `chat`."""
        return self._template_of(chat).render(chat.with_texts(self._guard), max_chars=max_chars)

    def check_chat(self, chat: Chat) -> None:
        """Raises InvalidFieldError for a chat that the model's template has no use for, whatever it says, and for tools
        if it is not known how the model would call them."""
        self._template_of(chat).check(chat)
        if chat.tools and self.tool_format is None:
            raise InvalidFieldError(
                f"how {self.name} writes calls of tools is not known; start the gateway with model.tool_parser",
                field=f"{FIELD}.tools",
            )

    def _template_of(self, chat: Chat) -> ChatTemplate:
        if self.tool_template is not None and chat.uses_tools:
            return self.tool_template
        if self.template is None:
            raise InvalidFieldError(
                f"{self.name} has no chat template; send a prompt, or start the gateway with model.chat_template",
                field=FIELD,
            )
        return self.template

    def _guard(self, text: str) -> str:
        text = text.replace(_BREAK, "\ufffd") if _BREAK in text else text
        if self.tokenizer.find_special(text) is None:
            return text
        return "".join(
            part if token_id is None else part[:1] + _BREAK + part[1:]
            for part, token_id in self.tokenizer.split_special(text)
        )


def load_model(settings: ModelSettings) -> ServedModel:
    """Reads the model that the settings name. Raises ModelError, ConfigError."""
    source = resolve_model(settings.model, settings.load_format)
    files = read_model_files(source, settings.chat_template)
    limit = files.max_model_len
    if settings.max_model_len > limit:
        raise ConfigError("model.max_model_len", f"is {settings.max_model_len}, but the model's own limit is {limit}")
    return ServedModel(
        served_names=settings.served_model_name or (source.default_name,),
        revision=fingerprint(source),
        tokenizer=files.tokenizer,
        template=files.template,
        tool_template=files.tool_template,
        tool_format=_tool_format(settings.tool_parser, files.tool_template or files.template),
        vocab_size=files.vocab_size,
        max_model_len=settings.max_model_len or limit,
        eos_token_ids=files.eos_token_ids,
        sampling=files.sampling,
    )


def _tool_format(chosen: str, template: ChatTemplate | None) -> ToolFormat | None:
    if chosen == "auto":
        return None if template is None else format_of(template.text)
    return TOOL_FORMATS.get(chosen)


class Catalogue:
    """The served models by name. Names are unique."""

    def __init__(self, models: Iterable[ServedModel]) -> None:
        self.models = tuple(models)
        self._by_name: Mapping[str, ServedModel] = {name: m for m in self.models for name in m.served_names}

    def find(self, name: str) -> ServedModel:
        """The model of a served name; the first one if empty. Raises ModelNotFoundError, which lists the names."""
        if not name:
            return self.models[0]
        found = self._by_name.get(name)
        if found is None:
            names = list(self._by_name)
            shown = ", ".join(names[:_MAX_NAMES_SHOWN]) + (", …" if len(names) > _MAX_NAMES_SHOWN else "")
            raise ModelNotFoundError(
                f"no model {name[:128]!r}; served: {shown}", metadata={"model": name[:128], "served": shown}
            )
        return found
