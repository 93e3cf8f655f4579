"""What holds for every test."""

import atexit
import os
import shutil
import tempfile

from hypothesis import settings

# No test writes into the home of whoever runs it. Those that keep a ledger say where.
_STATE = tempfile.mkdtemp(prefix="tercet-state-")
atexit.register(shutil.rmtree, _STATE, ignore_errors=True)
os.environ["XDG_STATE_HOME"] = _STATE

# How long an example takes says how busy the machine is.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
