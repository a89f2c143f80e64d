"""Test hooks: named places in the code where a test can kill the process or fill the disk.

Nothing happens unless the environment variable ``AXIOMRL_FAILPOINTS`` is set. It holds one or more entries
``name@n=action`` separated by commas: at the n-th hit of ``name``, counted from 1 within this process and
from the moment the variable got its present value, do ``action``:

- ``kill``: SIGKILL to the own process, as a power cut would (no handler, no clean-up);
- ``stop``: SIGSTOP to the own process, which whoever started it may kill, or let go on;
- ``enospc``: raise ``OSError(ENOSPC)``, as a full disk does.

Example: ``AXIOMRL_FAILPOINTS=checkpoint.write@3=kill``.
"""

import errno
import functools
import os
import re
import signal
from collections import Counter

ENV_VAR = "AXIOMRL_FAILPOINTS"

_ENTRY = re.compile(r"(?P<name>[\w.]+)@(?P<count>[1-9]\d*)=(?P<action>kill|stop|enospc)")


def hit(name: str) -> None:
    """Mark that execution passed the fail point ``name``; without effect when no fail point is set."""
    actions, hits = _activated(os.environ.get(ENV_VAR, ""))
    hits[name] += 1
    action = actions.get((name, hits[name]))
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@functools.lru_cache(maxsize=1)  # with another value of the variable, even an empty one, counting begins anew
def _activated(spec: str) -> tuple[dict[tuple[str, int], str], Counter[str]]:
    """(what to do at which hit, the hits so far)"""
    actions: dict[tuple[str, int], str] = {}
    for entry in filter(None, spec.split(",")):
        match = _ENTRY.fullmatch(entry.strip())
        # A misspelt fail point would let a fault test pass without any fault.
        if match is None:
            raise ValueError(f"{ENV_VAR}: cannot read {entry!r}; write name@n=kill, name@n=stop or name@n=enospc")
        actions[match["name"], int(match["count"])] = match["action"]
    return actions, Counter()
