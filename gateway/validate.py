"""A GenerateRequest from the wire to one in which every value is known to be possible. Pure; tokenizes nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tercet.errors import InvalidFieldError
from tercet.grammar.grammar import Grammar
from tercet.tenants.plan import MAX_PRIORITY
from tercet.v1 import inference_pb2 as pb

from .penalties import Penalties, read_penalties
from .prompt_input import ChatInput, Input, TextInput, chat_input, input_of, text_input
from .request_id import check_request_id
from .served_model import Catalogue, ServedModel
from .structure import FIELD, read_structure
from .token_logprobs import MAX_LOGPROBS
from .tool_grammar import calls_grammar, text_or_calls_grammar
from .vocabulary import check_token_ids

MAX_STOP_STRINGS = 16
MAX_STOP_STRING_BYTES = 256
MAX_STOP_TOKEN_IDS = 64
MAX_OUTPUTS = 128
MAX_TRAFFIC_CLASS_CHARS = 64
MAX_CACHE_SALT_CHARS = 128


@dataclass(frozen=True, slots=True)
class SamplingChoice:
    """How to choose tokens, every value set; `seed` is None where one has to be drawn, `num_logprobs` where no logprobs
    are wanted, `num_prompt_logprobs` where none of the prompt's are."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    num_logprobs: int | None
    num_prompt_logprobs: int | None


@dataclass(frozen=True, slots=True)
class StopChoice:
    """When to stop. Without `max_tokens` it is after `default_max_tokens`, or fewer if there is less room, and without
    these where there is no more. `token_ids` are the request's own, without the model's end tokens; `include_string`: a
    string that matched is the end of the text."""

    max_tokens: int | None
    default_max_tokens: int | None
    strings: tuple[str, ...]
    token_ids: tuple[int, ...]
    ignore_eos: bool
    include_string: bool


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request whose every value is possible; only its length in tokens is unknown. `request_id` may be empty, so may
    `traffic_class`, whose name the scheduler checks, and `cache_salt`."""

    request_id: str
    model: ServedModel
    input: Input
    sampling: SamplingChoice
    penalties: Penalties
    stop: StopChoice
    n: int
    traffic_class: str
    priority: int
    cache_salt: str
    # What its texts have to be; `structure_field` is where the client said so.
    structure: Grammar | None = None
    structure_field: str = FIELD


def validate_generate(
    message: pb.GenerateRequest, catalogue: Catalogue, *, max_prompt_bytes: int, default_max_tokens: int | None = None
) -> GenerationRequest:
    """Checks a request. `default_max_tokens` is the API's, where neither request nor model say how many. Raises
    ModelNotFoundError, PromptTooLongError, InvalidFieldError naming the field."""
    check_request_id(message.request_id)
    _check_service(message)
    model = catalogue.find(message.model)
    given = input_of(message, model, max_prompt_bytes)
    return GenerationRequest(
        request_id=message.request_id,
        model=model,
        input=given,
        sampling=_sampling(message.sampling, model),
        penalties=read_penalties(message.sampling, message.stop, model.vocab_size, model.sampling.repetition_penalty),
        stop=_stop(message.stop, model, default_max_tokens),
        n=_num_outputs(message.sampling),
        traffic_class=message.traffic_class,
        priority=message.priority,
        cache_salt=message.cache_salt,
        structure=_structure(message, model, given),
        structure_field=FIELD if message.HasField("structured_output") else "chat.tools",
    )


def validate_tokenize(
    message: pb.TokenizeRequest, catalogue: Catalogue, *, max_prompt_bytes: int
) -> tuple[ServedModel, TextInput | ChatInput]:
    """Checks a request to tokenize; errors as for `validate_generate`."""
    model = catalogue.find(message.model)
    which = message.WhichOneof("input")
    if which == "prompt":
        return model, text_input(message.prompt, max_prompt_bytes)
    if which == "chat":
        return model, chat_input(message.chat, model, max_prompt_bytes)
    raise InvalidFieldError("one of prompt, chat is required", field="input")


def validate_detokenize(message: pb.DetokenizeRequest, catalogue: Catalogue) -> tuple[ServedModel, Sequence[int]]:
    """Checks a request to detokenize; errors as for `validate_generate`."""
    model = catalogue.find(message.model)
    if len(message.token_ids) > model.max_model_len:
        raise InvalidFieldError(
            f"{len(message.token_ids)} token ids; the context holds {model.max_model_len}", field="token_ids"
        )
    check_token_ids(message.token_ids, model.vocab_size, "token_ids")
    return model, message.token_ids


def _check_service(message: pb.GenerateRequest) -> None:
    if len(message.traffic_class) > MAX_TRAFFIC_CLASS_CHARS:
        raise InvalidFieldError(
            f"traffic_class has {len(message.traffic_class)} characters; at most {MAX_TRAFFIC_CLASS_CHARS} are allowed",
            field="traffic_class",
        )
    if not -MAX_PRIORITY <= message.priority <= MAX_PRIORITY:
        raise InvalidFieldError(
            f"priority is {message.priority}; it must be in -{MAX_PRIORITY} .. {MAX_PRIORITY}", field="priority"
        )
    # Not repeated in the error: who knows it can probe.
    if len(message.cache_salt) > MAX_CACHE_SALT_CHARS:
        raise InvalidFieldError(
            f"cache_salt has {len(message.cache_salt)} characters; at most {MAX_CACHE_SALT_CHARS} are allowed",
            field="cache_salt",
        )


def _structure(message: pb.GenerateRequest, model: ServedModel, given: Input) -> Grammar | None:
    chat = given.chat if isinstance(given, ChatInput) else None
    if chat is not None and chat.forced:
        assert model.tool_format is not None, "a chat with tools has been checked"
        check_ends(message, model, "chat.forced_tool" if message.chat.forced_tool else "chat.tool_choice")
        if message.HasField("structured_output"):
            raise InvalidFieldError(f"a tool that has to be called excludes {FIELD}", field=FIELD)
        return calls_grammar(model.tool_format, chat.forced, single=chat.single_call)
    if not message.HasField("structured_output"):
        return None
    check_ends(message, model, FIELD)
    text = read_structure(message.structured_output)
    if chat is None or not chat.tools:
        return text
    assert model.tool_format is not None, "a chat with tools has been checked"
    return text_or_calls_grammar(text, model.tool_format, chat.tools, single=chat.single_call)


def check_ends(message: pb.GenerateRequest, model: ServedModel, field: str) -> None:
    """Raises InvalidFieldError on `field` if a text that is over cannot be ended."""
    ends, allowed = set(model.eos_token_ids), message.sampling.allowed_token_ids
    if message.stop.ignore_eos or not ends:
        problem = "ignore_eos excludes it" if ends else f"{model.name} has none"
        raise InvalidFieldError(f"{field} ends with an end token of the model; {problem}", field=field)
    if allowed and ends.isdisjoint(allowed):
        raise InvalidFieldError(
            f"{field} ends with an end token of the model, and allowed_token_ids has none", field=field
        )


def _num_outputs(given: pb.SamplingParams) -> int:
    n = given.n if given.HasField("n") else 1
    if not 1 <= n <= MAX_OUTPUTS:
        raise InvalidFieldError(f"n is {n}; it must be in 1 .. {MAX_OUTPUTS}", field="sampling.n")
    if given.HasField("best_of") and given.best_of != n:
        raise InvalidFieldError(
            f"best_of is {given.best_of} and n is {n}; outputs are not generated to be withheld: leave best_of out, "
            "ask by n for all that should be generated, and choose among them",
            field="sampling.best_of",
        )
    return n


def _sampling(given: pb.SamplingParams, model: ServedModel) -> SamplingChoice:
    default = model.sampling
    temperature = given.temperature if given.HasField("temperature") else default.temperature
    top_p = given.top_p if given.HasField("top_p") else default.top_p
    min_p = given.min_p if given.HasField("min_p") else default.min_p
    top_k = given.top_k if given.HasField("top_k") else default.top_k
    # Written so that NaN fails.
    if not (math.isfinite(temperature) and temperature >= 0):
        raise _out_of_range("temperature", temperature, "finite and at least 0")
    if not 0 < top_p <= 1:
        raise _out_of_range("top_p", top_p, "in (0, 1]")
    if not 0 <= min_p <= 1:
        raise _out_of_range("min_p", min_p, "in [0, 1]")
    if given.logprobs > MAX_LOGPROBS:
        raise _out_of_range("logprobs", given.logprobs, f"at most {MAX_LOGPROBS}")
    if given.prompt_logprobs > MAX_LOGPROBS:
        raise _out_of_range("prompt_logprobs", given.prompt_logprobs, f"at most {MAX_LOGPROBS}")
    return SamplingChoice(
        temperature=temperature,
        top_p=top_p,
        top_k=min(top_k, model.vocab_size),
        min_p=min_p,
        seed=given.seed if given.HasField("seed") else None,
        num_logprobs=given.logprobs if given.HasField("logprobs") else None,
        num_prompt_logprobs=given.prompt_logprobs if given.HasField("prompt_logprobs") else None,
    )


def _out_of_range(name: str, value: float, allowed: str) -> InvalidFieldError:
    return InvalidFieldError(f"{name} is {value:g}; it must be {allowed}", field=f"sampling.{name}")


def _stop(given: pb.StopConditions, model: ServedModel, default_max_tokens: int | None) -> StopChoice:
    max_tokens = given.max_tokens if given.HasField("max_tokens") else None
    if max_tokens == 0:
        raise InvalidFieldError("max_tokens is 0; it must be at least 1", field="stop.max_tokens")
    if len(given.strings) > MAX_STOP_STRINGS:
        raise InvalidFieldError(
            f"{len(given.strings)} stop strings; at most {MAX_STOP_STRINGS} are allowed", field="stop.strings"
        )
    for index, string in enumerate(given.strings):
        if not string:
            raise InvalidFieldError(f"stop string {index} is empty", field=f"stop.strings[{index}]")
        if (size := len(string.encode())) > MAX_STOP_STRING_BYTES:
            raise InvalidFieldError(
                f"stop string {index} has {size} bytes; at most {MAX_STOP_STRING_BYTES} are allowed",
                field=f"stop.strings[{index}]",
            )
    if len(given.token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidFieldError(
            f"{len(given.token_ids)} stop token ids; at most {MAX_STOP_TOKEN_IDS} are allowed", field="stop.token_ids"
        )
    check_token_ids(given.token_ids, model.vocab_size, "stop.token_ids")
    return StopChoice(
        max_tokens=max_tokens,
        default_max_tokens=default_max_tokens if model.sampling.max_tokens is None else model.sampling.max_tokens,
        strings=tuple(given.strings),
        token_ids=tuple(dict.fromkeys(given.token_ids)),
        ignore_eos=given.ignore_eos,
        include_string=given.include_stop_string,
    )
