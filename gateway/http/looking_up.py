"""The endpoints that answer at once: models, tokens, health. What gRPC answers, in the shapes of OpenAI and vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tercet.errors import InvalidFieldError
from tercet.health import READY, Conditions
from tercet.v1 import inference_pb2 as pb
from tercet.v1 import models_pb2

from ..caller import Caller
from ..generations import Generations
from ..models_service import ModelsService
from ..served_model import Catalogue
from ..validate import validate_detokenize, validate_tokenize
from .chat_body import read_chat_input
from .exchange import Exchange, encode_json
from .failures import HttpError
from .fields import Fields
from .generating import ignored_header
from .parameters import MAX_UINT32


class LookingUp:
    """`health` says what holds of the gateway; `started_at` is in seconds since the epoch."""

    def __init__(
        self,
        catalogue: Catalogue,
        generations: Generations,
        models: ModelsService,
        health: Callable[[], Conditions],
        started_at: float,
    ) -> None:
        self._catalogue = catalogue
        self._generations = generations
        self._models = models
        self._health = health
        self._created = int(started_at)

    async def models(self, exchange: Exchange, caller: Caller, _body: Mapping[str, Any]) -> None:
        """All served names."""
        listed = await self._models.list_models(models_pb2.ListModelsRequest(), caller)
        data = [self._model(name, model) for model in listed.models for name in model.served_names]
        await _answer(exchange, {"object": "list", "data": data})

    async def model(self, exchange: Exchange, caller: Caller, _body: Mapping[str, Any]) -> None:
        """One by any of its names, which may have slashes."""
        name = exchange.scope["path_params"]["name"]
        found = await self._models.get_model(models_pb2.GetModelRequest(name=name), caller)
        await _answer(exchange, self._model(name, found))

    async def tokenize(self, exchange: Exchange, caller: Caller, body: Mapping[str, Any]) -> None:
        """Token ids of a text or a chat."""
        fields = Fields(body)
        request = pb.TokenizeRequest(model=fields.text("model") or "")
        # A text begins as the model's tokenizer wants it, a chat as its template does.
        prompt = fields.text("prompt")
        ignored: list[str] = []
        if prompt is not None:
            request.prompt = prompt
        elif "messages" not in body:
            raise InvalidFieldError("prompt or messages is required", field="messages")
        else:
            request.chat.CopyFrom(read_chat_input(fields, ignored))
        fields.only({"add_special_tokens": (prompt is not None,), "return_token_strs": (False,)})
        fields.refuse_rest()
        max_bytes = self._generations.settings.max_prompt_bytes
        model, given = validate_tokenize(request, self._catalogue, max_prompt_bytes=max_bytes)
        with self._generations.place(caller):
            _, ids = await self._generations.tokenizing.encode(model, given, caller.tenant)
            found = await self._models.get_model(models_pb2.GetModelRequest(name=model.name), caller)
            limit = found.max_model_len
            counted = {"count": len(ids), "max_model_len": limit, "tokens": ids, "token_strs": None}
            await exchange.answer(200, encode_json(counted), ignored_header(ignored))

    async def detokenize(self, exchange: Exchange, caller: Caller, body: Mapping[str, Any]) -> None:
        """The text of token ids."""
        exchange.renamed = {"prompt": "tokens"}
        fields = Fields(body)
        name = fields.text("model") or ""
        ids = fields.integers("tokens", 0, MAX_UINT32)
        fields.refuse_rest()
        if "tokens" not in body:
            raise InvalidFieldError("tokens is required", field="tokens")
        model, given = validate_detokenize(pb.DetokenizeRequest(model=name, token_ids=ids), self._catalogue)
        with self._generations.place(caller):
            text = await self._generations.tokenizing.decode(model, given, caller.tenant)
            await _answer(exchange, {"prompt": text})

    async def embeddings(self, _exchange: Exchange, _caller: Caller, _body: Mapping[str, Any]) -> None:
        """Refused: models that generate have none."""
        raise HttpError(404, "not_offered", "embeddings are not offered: the models here generate text")

    async def health(self, exchange: Exchange, _caller: Caller, _body: Mapping[str, Any]) -> None:
        """200 if the gateway is ready, 503 if not; of each name what does not hold."""
        names = {name: list(reasons) for name, reasons in self._health().items() if name}
        await exchange.answer(503 if names.get(READY) else 200, encode_json(names), {"cache-control": "no-store"})

    def _model(self, name: str, model: models_pb2.Model) -> dict[str, Any]:
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "tercet",
            "root": model.name,
            "parent": None,
            "max_model_len": model.max_model_len,
        }


async def _answer(exchange: Exchange, value: Mapping[str, Any]) -> None:
    await exchange.answer(200, encode_json(value), {})
