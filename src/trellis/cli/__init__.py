"""The command line: `parser` says what the commands are called, `commands` what they do, `console` how it looks."""
