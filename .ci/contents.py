"""Files in a source archive and in a wheel: all that the build needs and the package reads, and nothing else.

python .ci/contents.py ARCHIVE.tar.gz WHEEL.whl, from the top of the checkout.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

PACKAGE = "gradcheck_cli"
OF_THE_BUILD = (f"{PACKAGE}/native/src/", f"{PACKAGE}/native/CMakeLists.txt")
AT_THE_TOP = {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO"}


def tracked() -> set[str]:
    """Files of the package in the checkout."""
    listed = subprocess.run(["git", "ls-files", PACKAGE], capture_output=True, text=True, check=True)
    return {name for name in listed.stdout.splitlines() if Path(name).is_file()}


def faults_of_source(names: set[str], own: set[str]) -> list[str]:
    """Files that the archive lacks, and hidden or built ones that it has."""
    lacking = [f"{name} is missing from the source archive" for name in sorted((own | AT_THE_TOP) - names)]
    return lacking + [f"{name} is in the source archive" for name in sorted(names) if hidden(name) or built(name)]


def faults_of_wheel(names: set[str], own: set[str]) -> list[str]:
    """Files that the wheel lacks, and those that neither the package nor its metadata need."""
    wanted = {name for name in own if not name.startswith(OF_THE_BUILD)}
    kernels = {name for name in names if name.startswith(f"{PACKAGE}/native/_kernels.") and built(name)}
    more = {name for name in names - wanted - kernels if ".dist-info/" not in name}
    lacking = [f"{name} is missing from the wheel" for name in sorted(wanted - names)]
    count = [] if len(kernels) == 1 else [f"the wheel has {len(kernels)} builds of the kernels"]
    return [*lacking, *count, *(f"{name} is in the wheel" for name in sorted(more))]


def hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(name).parts)


def built(name: str) -> bool:
    return PurePosixPath(name).suffix in {".so", ".pyd", ".pyc"}


def main(source: str, wheel: str) -> int:
    own = tracked()
    with tarfile.open(source) as archive:
        packed = {each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()}
    with zipfile.ZipFile(wheel) as installed:
        unpacked = set(installed.namelist())
    faults = faults_of_source(packed, own) + faults_of_wheel(unpacked, own)
    print(*faults, f"source archive: {len(packed)} files, wheel: {len(unpacked)} files", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
