"""One module for each command: SUMMARY and EXAMPLE for --help, `arguments(parser)`, and `run(args) -> Answer`.

Modules load nothing heavy before `run`, so that --help and wrong arguments are answered at once."""
