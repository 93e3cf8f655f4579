import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.open_files import MAX_CONNECTIONS, connections_within

SCRIPT = """
import resource
from tercet.open_files import allow_many, max_connections
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
assert max_connections() == 32
allow_many()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], max_connections())
"""


@given(st.integers(1, 1 << 30))
def test_connections_leave_files_for_the_process_itself(open_files):
    connections = connections_within(open_files)
    assert 1 <= connections <= MAX_CONNECTIONS
    assert connections == MAX_CONNECTIONS or connections <= max(1, open_files - min(256, open_files // 2))


@pytest.mark.parametrize(("hard", "connections"), [(64, 32), (1000, 744)])
def test_a_process_allows_itself_what_it_may(hard, connections):
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(hard=hard)], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(hard), str(connections)], done.stderr
