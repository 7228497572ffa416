"""``python -m privbench``: the command, where its script is not on the path."""

from privbench.cli.main import main

main(prog_name="privbench")
