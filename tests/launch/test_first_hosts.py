"""The script that names the hosts of a job."""

from __future__ import annotations

import pytest

from rabit import InvalidArgument
from rabit.launch.options import first_hosts


@pytest.fixture
def script(tmp_path, monkeypatch):
    """script(text, mode): a file in the working directory, by its name."""
    monkeypatch.chdir(tmp_path)

    def write(text, mode=0o755):
        path = tmp_path / "my hosts.sh"
        path.write_text(text)
        path.chmod(mode)
        return path.relative_to(tmp_path)

    return write


def test_a_script_that_does_not_end_is_told(script, monkeypatch):
    monkeypatch.setattr(first_hosts, "_SCRIPT_TIMEOUT_S", 0.1)
    hangs = script("#!/bin/sh\nexec sleep 60\n")

    with pytest.raises(InvalidArgument, match=r"my hosts.sh has not ended within 0.1 s. Run it by hand"):
        first_hosts.discovered_hosts(hangs, None)


@pytest.mark.parametrize(
    ("text", "mode", "remedy"),
    [
        ("echo localhost\n", 0o755, r"Let its first line say what runs it, such as #!/bin/sh\."),
        ("#!/bin/sh\necho localhost\n", 0o644, r"Run: chmod \+x './my hosts.sh'"),
        ("#!/no/shell\necho localhost\n", 0o755, r"Correct the path, or that of the program in its first line\."),
    ],
    ids=["no first line", "not executable", "no such program"],
)
def test_a_script_that_cannot_run_is_told_with_the_remedy(script, text, mode, remedy):
    with pytest.raises(InvalidArgument, match=f"my hosts.sh cannot be run: .* {remedy}"):
        first_hosts.discovered_hosts(script(text, mode), None)
