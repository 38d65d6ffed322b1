"""``ptxc completion``: scripts that complete ptxc's arguments in a shell."""

from __future__ import annotations

import argparse

from ptxc.cli.arguments import Commands, Parser
from ptxc.cli.files import show

_DESCRIPTION = """\
Prints a script that completes ptxc's commands, options, targets, passes and files.

  bash   ptxc completion bash > ~/.local/share/bash-completion/completions/ptxc
  zsh    ptxc completion zsh > ~/.zsh/completions/_ptxc         (a folder of $fpath)
  fish   ptxc completion fish > ~/.config/fish/completions/ptxc.fish
  tcsh   ptxc completion tcsh >> ~/.tcshrc"""

#: What takes a file or folder.
_FILES = ("sources", "output", "launch_json", "inputs", "expect", "launch", "program", "golden", "figures", "picture")
_FOLDERS = ("dump_dir", "out")


def add(commands: Commands) -> None:
    """Make the command's parser."""
    parser = commands.add_parser(
        "completion",
        help="print a script that completes arguments in a shell",
        description=_DESCRIPTION,
        usage="ptxc completion bash|zsh|fish|tcsh",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish", "tcsh"), help="the shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from ptxc.cli import build
    from ptxc.passes.pipeline import PIPELINE
    from ptxc.target import TARGETS

    root, commands = build()
    passes = [item.name for item in PIPELINE]
    values = {
        "target": list(TARGETS),
        "disable": [item.name for item in PIPELINE if not item.required],
        "stop_after": ["build", *passes],
        "start_at": [*passes, "print"],
        "dump_after": ["all", "build", *passes],
        "name": passes,
    }
    for parser in commands.choices.values():
        for action in _actions(parser):
            if action.dest in _FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            elif action.dest in _FOLDERS:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.dest in values:
                action.choices = values[action.dest]
    show(shtab.complete(root, shell=args.shell))
    return 0


def _actions(parser: Parser) -> list[argparse.Action]:
    return parser._actions
