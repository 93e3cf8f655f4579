"""What all services share, and what clients import."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tercet.client import AsyncClient, ChatMessage, Client, ClientTls, Conversation, Delta, Options, Retry, Tool

__all__ = [
    "AsyncClient",
    "ChatMessage",
    "Client",
    "ClientTls",
    "Conversation",
    "Delta",
    "Options",
    "Retry",
    "Tool",
    "__version__",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # When first asked for: services import this package too, and start without a client.
    if name in __all__:
        from tercet import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
