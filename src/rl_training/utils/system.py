"""Facts about the machine."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_name() -> str:
    """The processor's name where the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
