"""`gradcheck zoo merge RUN... -o RUN`: the shards of a run put together."""

from __future__ import annotations

import rich_click as click


@click.command("merge")
@click.argument("folders", metavar="RUN...", nargs=-1, required=True, type=click.Path())
@click.option("-o", "--output", "target", metavar="RUN", required=True, type=click.Path(), help="The new run.")
def command(folders: tuple[str, ...], target: str) -> int:
    """Put runs together, such as the shards of one, in a new folder; each check once, the last RUN's if several have it."""
    import sys
    from pathlib import Path

    from gradcheck_cli.cli.zoo.results import note
    from gradcheck_cli.report.text import count
    from gradcheck_cli.zoo.store import differing, merged

    runs = [Path(folder) for folder in folders]
    if difference := differing(runs):
        note(difference)
    about = merged(runs, Path(target))
    sys.stdout.write(f"{target}: {count(len(about.jobs), 'check')} of {count(len(runs), 'run')}\n")
    return 0
