"""The command line: `main` finds the commands, each a module of `commands`; `console` prints what they answer."""
