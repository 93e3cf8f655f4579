"""tercet.v1.Models over gRPC, and what HTTP says of the same."""

from __future__ import annotations

from tercet import errors
from tercet.v1 import models_pb2

from .caller import Caller
from .schedulers import Schedulers
from .served_model import Catalogue, ServedModel


class ModelsService:
    """tercet.v1.Models."""

    def __init__(self, catalogue: Catalogue, link: Schedulers) -> None:
        self._catalogue = catalogue
        self._link = link

    async def list_models(self, _: models_pb2.ListModelsRequest, _caller: Caller) -> models_pb2.ListModelsResponse:
        """All models."""
        return models_pb2.ListModelsResponse(models=[self._model(model) for model in self._catalogue.models])

    async def get_model(self, message: models_pb2.GetModelRequest, _caller: Caller) -> models_pb2.Model:
        """One model by any of its names."""
        if not message.name:
            raise errors.InvalidFieldError("name is required", field="name")
        return self._model(self._catalogue.find(message.name))

    def _model(self, model: ServedModel) -> models_pb2.Model:
        ready = self._link.ready(model.name, model.revision)
        limit = model.max_model_len
        if ready:
            limit = min(limit, self._link.pool(model.name, model.revision).max_model_len or limit)
        return models_pb2.Model(
            name=model.name,
            served_names=model.served_names,
            revision=model.revision,
            max_model_len=limit,
            vocab_size=model.vocab_size,
            ready=ready,
            chat=model.template is not None,
        )
