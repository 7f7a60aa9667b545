"""Writes the reference of rabitrun from its parser: python docs/rabitrun_page.py > docs/reference/rabitrun.md.

tests/repo/test_pages.py compares the two.
"""

from __future__ import annotations

import argparse

from rabit.launch.options.flags import make_parser

HEAD = """# rabitrun

Starts a program as the ranks of one job.
[Launch a job](../howto/launch.md) shows how to use it; this page lists every flag, and is generated from the parser.

```
rabitrun -np N [flags] command [argument ...]
```

`python -m rabit.launch` is the same program.
Every [setting](config.md) is also a flag.

## Subcommands

| command | purpose |
|---|---|
| `rabitrun bench KIND` | measures and checks collectives ([measure](../howto/tuning.md)) |
| `rabitrun tune -o TABLE` | finds the fastest routes ([tune](../howto/tuning.md)) |
| `rabitrun plan --topology FILE` | shows how fast a network could be ([uneven networks](../howto/uneven_network.md)) |
| `rabitrun log FILE` | adds up what `--comm-log` recorded, also while the job runs |
| `rabitrun doctor` | names the cause of a hanging, slow or failed job ([diagnose](../howto/diagnose.md)) |
| `rabitrun stacks`, `top`, `record` | shows stacks, a live table, and the records of a job |
| `rabitrun checkpoint ls, show, verify, consolidate, import` | works on [checkpoints](../howto/checkpoints.md) |

A program of that name in `PATH` comes first.
`--help` after a subcommand lists its flags.

## Exit status

| status | meaning |
|---|---|
| 0 | every rank exited with 0 |
| 2 | the command line is wrong |
| 75 | the ranks saved and left early; start the job again |
| 128 + n | rabitrun or the first failing rank was ended by signal n |
| other | the status of the rank that failed first |
"""


def rabitrun_markdown() -> str:
    """The page as Markdown."""
    parts = [HEAD]
    formatter = argparse.HelpFormatter("rabitrun")
    for group in make_parser()._action_groups:
        rows = [
            row(action, formatter)
            for action in group._group_actions
            if action.option_strings and action.help not in (None, argparse.SUPPRESS)
        ]
        if rows and group.title:
            parts.append(
                f"\n## {group.title[0].upper()}{group.title[1:]}\n\n| flag | |\n|---|---|\n"
            )
            parts.extend(rows)
    return "".join(parts)


def row(action: argparse.Action, formatter: argparse.HelpFormatter) -> str:
    """The line of one flag, with its other names and its value."""
    value = ""
    if action.nargs != 0:
        shown = action.metavar or (formatter._metavar_formatter(action, action.dest.upper())(1)[0])
        value = f" {shown if isinstance(shown, str) else shown[0]}".replace("|", "\\|")
    names = ", ".join(f"`{name}{value}`" for name in action.option_strings)
    return f"| {names} | {formatter._expand_help(action)} |\n"


if __name__ == "__main__":
    print(rabitrun_markdown(), end="")
