"""Python's garbage collector in a process whose event loop must not stand still for it."""

from __future__ import annotations

import gc

# Objects that are new and not gone before the collector looks at the young ones, and such looks before it looks at what
# survived them, too. That takes 0.1 and 0.3 ms; with the usual ten looks, 1 ms.
_YOUNG_OBJECTS, _YOUNG_LOOKS = 700, 3
# Looks at survivors before it looks at all there is: about as seldom as is usual, a sixth of that, and next to never.
USUAL = 32
RARELY = 200
SELDOM = 1000


def settle(full_after: int = USUAL) -> None:
    """To be called once a service is loaded: what is there now stays, and is never looked at again.

    `full_after` looks at young objects lie between two at all of them, which take as long as there are many. RARELY and
    SELDOM are for who keeps many and leaves few cycles: those that live long wait for it to be freed.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _YOUNG_LOOKS - 1, full_after)
