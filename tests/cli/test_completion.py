"""Completion scripts offer every command, option and family; the page of options is what the program prints."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from trellis.cli.main import build_parser, find_commands, main
from trellis.registry import FAMILIES

OPTIONS = Path(__file__).parents[2] / "docs" / "options.md"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert not ended.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("trellis ", {"train", "infill", "completion"}, {"--states"}),
        ("trellis tr", {"train"}, {"tag"}),
        ("trellis train --", {"--model", "--resume"}, {"train", "--samples"}),
        ("trellis train --model ", {*FAMILIES}, {"--model"}),
        ("trellis train --model hmm ", {"--states"}, {"hmm"}),
        ("trellis config ", {*FAMILIES}, {"--states"}),
        ("trellis tag ", {"train", "apply", "eval"}, {"score"}),
        ("trellis tag train --model ", {"crf", "hmm"}, {"lds"}),
    ],
)
def test_bash(line: str, offered: set[str], not_offered: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    shell = shutil.which("bash")
    if shell is None:
        pytest.skip("bash is not installed")
    words = " ".join(f"'{word}'" for word in line.split(" "))
    script = printed(capsys, "completion", "bash") + f"COMP_WORDS=({words})\nCOMP_CWORD={line.count(' ')}\n_trellis\n"
    script += 'printf "%s\\n" "${COMPREPLY[@]}"\n'
    found = set(subprocess.run([shell, "-c", script], capture_output=True, text=True, check=True).stdout.split())
    assert offered <= found
    assert not not_offered & found


def test_every_command_and_option_is_in_every_script(capsys: pytest.CaptureFixture[str]) -> None:
    parser = build_parser(find_commands())
    commands = next(action.choices for action in parser._actions if action.dest == "command")
    for shell in ("bash", "zsh", "fish"):
        script = printed(capsys, "completion", shell)
        words = set(re.findall(r"[\w-]+", script))
        for name, command in commands.items():
            flags = {flag for action in command._actions for flag in action.option_strings}
            wanted = {flag.lstrip("-") for flag in flags} if shell == "fish" else flags
            assert wanted | {name} <= words


def test_the_page_of_options_is_generated(capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, "config", "--markdown")
    assert page == OPTIONS.read_text(encoding="utf-8"), "run: trellis config --markdown > docs/options.md"
    assert all(f"`{name}`" in page for name in FAMILIES)


def test_train_lists_the_families(capsys: pytest.CaptureFixture[str]) -> None:
    shown = " ".join(printed(capsys, "train", "--help").split())
    assert f"model family: {', '.join(FAMILIES)}" in shown
