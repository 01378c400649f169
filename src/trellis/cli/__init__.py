"""The command line: `main` finds the commands, one module each in `commands`; `console` prints their results."""
