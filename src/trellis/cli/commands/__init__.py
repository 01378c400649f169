"""One module per command: SUMMARY and EXAMPLE for --help, `arguments(parser)`, and `run(args) -> Answer`.

Modules defer heavy imports to `run`, so that --help and argument errors are fast."""
