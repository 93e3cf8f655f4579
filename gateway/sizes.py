"""How long a request may become: its prompt in tokens and its max_tokens against the room there is. Pure."""

from __future__ import annotations

from tercet.errors import PromptTooLongError
from tercet.tenants.plan import TenantPlan

from .mesh_messages import Pool
from .prompt_input import ChatInput, TextInput, TokenInput, prompt_too_long
from .served_model import ServedModel
from .validate import GenerationRequest

_FIELDS = {TextInput: "prompt", TokenInput: "token_ids.ids", ChatInput: "chat"}


def input_field(request: GenerationRequest) -> str:
    """The field that the prompt came in."""
    return _FIELDS[type(request.input)]


def context_limit(model: ServedModel, pool: Pool) -> int:
    """Most tokens, prompt and output together, that gateway and workers have a context for."""
    return min(model.max_model_len, pool.max_model_len or model.max_model_len)


def resolve_max_tokens(request: GenerationRequest, prompt_tokens: int, pool: Pool) -> int:
    """The request's; else by default as many as there is room for in a worker, or fewer. Raises PromptTooLongError
    beyond the context."""
    limit = context_limit(request.model, pool)
    if prompt_tokens >= limit:
        raise prompt_too_long(input_field(request), prompt_tokens, None, limit)
    if request.stop.max_tokens is None:
        # Of a prompt without room the scheduler says what it lacks.
        room = max(1, min(limit, pool.max_sequence_len or limit) - prompt_tokens)
        return min(room, request.stop.default_max_tokens or room)
    if prompt_tokens + request.stop.max_tokens > limit:
        raise prompt_too_long("stop.max_tokens", prompt_tokens, request.stop.max_tokens, limit)
    return request.stop.max_tokens


def refuse_hopeless(request: GenerationRequest, least_prompt_tokens: int, pool: Pool, plan: TenantPlan) -> None:
    """Raises PromptTooLongError if a prompt of no fewer tokens leaves no room for one, in the context or in the plan's:
    whatever its tokens are, a check of its size would refuse it."""
    limit, name, whose = context_limit(request.model, pool), "max_model_len", "the context"
    if 0 < plan.max_context < limit:
        limit, name, whose = plan.max_context, "max_context", "the plan's max_context"
    if least_prompt_tokens >= limit:
        raise PromptTooLongError(
            f"the prompt has {least_prompt_tokens} tokens or more; {whose} is {limit}, and one has to be left",
            field=input_field(request),
            metadata={"prompt_tokens_at_least": str(least_prompt_tokens), name: str(limit)},
        )


def surely_fits(request: GenerationRequest, most_prompt_tokens: int, pool: Pool, plan: TenantPlan) -> bool:
    """Whether no check of a size, here or in the scheduler, refuses a prompt of at most so many tokens.

    Of several outputs, of shares of a pool's blocks, of a least length, of bad words, and of the prompt's logprobs the
    scheduler or the tokens are asked.
    """
    asks = request.penalties.min_tokens or request.penalties.bad_words
    if request.n != 1 or plan.kv_share or asks or not pool.max_sequence_len:
        return False
    if request.sampling.num_prompt_logprobs is not None:
        return False
    most = context_limit(request.model, pool)
    # A plan allows as many tokens at once as by the minute, and more.
    room = min(most, pool.max_sequence_len, plan.max_context or most, plan.tokens_per_minute or most)
    return most_prompt_tokens + (request.stop.max_tokens or 1) <= room
