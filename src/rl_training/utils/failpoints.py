"""Test hooks: named places in the code where a test can kill the process or fill the disk.

Nothing happens unless the environment variable ``AXIOMRL_FAILPOINTS`` is set. It holds one or more entries
``name@n=action`` separated by commas: at the n-th hit of ``name``, counted from 1 within this process and
from the moment the variable got its present value, do ``action``:

- ``kill``: SIGKILL to the own process, as a power cut would (no handler, no clean-up);
- ``enospc``: raise ``OSError(ENOSPC)``, as a full disk does.

Example: ``AXIOMRL_FAILPOINTS=checkpoint.write@3=kill``.
"""

import errno
import os
import re
import signal
from collections import Counter

ENV_VAR = "AXIOMRL_FAILPOINTS"

_ENTRY = re.compile(r"(?P<name>[\w.]+)@(?P<count>[1-9]\d*)=(?P<action>kill|enospc)")

_active_spec = ""
_active_entries: dict[tuple[str, int], str] = {}
_hits: Counter[str] = Counter()


def hit(name: str) -> None:
    """Mark that execution passed the fail point ``name``; without effect when no fail point is set."""
    spec = os.environ.get(ENV_VAR, "")
    if spec != _active_spec:
        _activate(spec)
    if not spec:
        return
    _hits[name] += 1
    action = _active_entries.get((name, _hits[name]))
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "enospc":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _activate(spec: str) -> None:
    global _active_spec
    entries: dict[tuple[str, int], str] = {}
    for entry in filter(None, spec.split(",")):
        match = _ENTRY.fullmatch(entry.strip())
        # A misspelt fail point would let a fault test pass without any fault.
        if match is None:
            raise ValueError(f"{ENV_VAR}: cannot read {entry!r}; write name@n=kill or name@n=enospc")
        entries[match["name"], int(match["count"])] = match["action"]
    _active_spec = spec
    _active_entries.clear()
    _active_entries.update(entries)
    _hits.clear()
