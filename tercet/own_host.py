"""Whether a request was meant for this machine, by the host that its client says it asks. Pure."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def is_own_host(header: str, own: str) -> bool:
    """Whether `header`, HTTP's `Host`, names this machine: by an address, as localhost, or as `own`.

    A page of a browser can have its own name resolve to 127.0.0.1 and so reach what listens there; its name it cannot
    hide.
    """
    try:
        name = (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return False
    if name == "localhost" or name.endswith(".localhost") or name == own.lower():
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
