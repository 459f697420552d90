"""A call in a process of its own, and how much memory that process had at most.

The peak is the system's own figure for the process: where there is one, `VmHWM`, since `ru_maxrss` remembers what the
process was forked from.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent


def alone(function: str, variables: Mapping[str, str] | None = None, /, **arguments: Any) -> tuple[Any, float]:
    """The result of `module:function` in a fresh interpreter, as far as JSON can say it, and the peak in MB.

    `variables` are added to its environment, for what libraries read while they are imported.
    """
    command = [sys.executable, "-m", "benchmarks.alone", function, json.dumps(arguments)]
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    given = {**os.environ, **(variables or {}), "PYTHONPATH": path}
    ran = subprocess.run(command, env=given, capture_output=True, text=True)
    if ran.returncode:
        said = ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"]
        raise RuntimeError(f"{function}: {said[-1]}")
    value, most = json.loads(ran.stdout.splitlines()[-1])
    return value, most


def peak() -> float:
    """The most memory that this process had so far, in MB."""
    try:
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def main() -> None:
    """Makes the call that the command line names."""
    module, _, name = sys.argv[1].partition(":")
    value = getattr(import_module(module), name)(**json.loads(sys.argv[2]))
    print(json.dumps([value, peak()]))


if __name__ == "__main__":
    main()
