"""The `trellis` program, as `python -m trellis` and as a console script; its commands are in `trellis.cli`."""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def main() -> None:
    """Run the command line. An interrupt prints one line and exits with code 130, even while modules are imported."""
    try:
        import signal

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        from trellis.cli.main import main as run

        run()
    except KeyboardInterrupt:
        leave()


def interrupt(number: int, frame: "FrameType | None") -> None:
    """Raise KeyboardInterrupt. During an import, exit the process at once instead, because callbacks of imports may
    print or swallow the exception."""
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("importlib."):
            leave()
        frame = frame.f_back
    raise KeyboardInterrupt


def leave() -> None:
    """Print the line and exit without the interpreter's own clean-up, which could be interrupted again."""
    os.write(2, b"trellis: interrupted\n")
    try:
        sys.stdout.flush()
    finally:
        os._exit(130)


if __name__ == "__main__":
    main()
