"""The tests run against the package that is installed, whichever way pytest was started.

`python -m pytest` puts the working folder first, where an ordinary installation has no compiled kernels: the
folder moves behind the installed packages.  An editable installation leads back to it by itself.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _ROOT] + [str(_ROOT)]

os.environ["GRADCHECK_SAVE_FAILURES"] = "none"  # failures are wanted here: they leave nothing in the working folder
