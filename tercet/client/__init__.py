"""Clients of a Tercet gateway: typed events in, typed errors out. `Client` is for threads, `AsyncClient` for loops.

    with Client("127.0.0.1:50051") as client:
        for event in client.generate("Once upon a time", max_tokens=32):
            if isinstance(event, Delta):
                print(event.text, end="", flush=True)

Leaving a scope ends what it opened: a generation that is dropped, by ``break`` or by an exception, is cancelled on the
server, and leaving the client's scope cancels every one that is still open.
"""

from tercet.ledger.row import Cancelled
from tercet.mesh_info import FleetInfo, ModelInfo
from tercet.messages import (
    Accepted,
    Answer,
    ChatMessage,
    Delta,
    Event,
    Finished,
    Options,
    Output,
    OutputEnd,
    Prompt,
    PromptLogprobs,
    Timings,
    TokenLogprobs,
    Tool,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from tercet.tls.client import ClientTls
from tercet.traffic import TrafficInfo

from .awaiting import AsyncClient, AsyncGeneration
from .blocking import Client, Generation
from .connection import DEFAULT_ADDRESS
from .conversation import Conversation
from .retries import Retry

__all__ = [
    "DEFAULT_ADDRESS",
    "Accepted",
    "Answer",
    "AsyncClient",
    "AsyncGeneration",
    "Cancelled",
    "ChatMessage",
    "Client",
    "ClientTls",
    "Conversation",
    "Delta",
    "Event",
    "Finished",
    "FleetInfo",
    "Generation",
    "ModelInfo",
    "Options",
    "Output",
    "OutputEnd",
    "Prompt",
    "PromptLogprobs",
    "Retry",
    "Timings",
    "TokenLogprobs",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "TrafficInfo",
    "Usage",
]
