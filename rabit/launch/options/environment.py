"""The environment of ranks."""

from __future__ import annotations

from collections.abc import Mapping

from rabit.errors import InvalidArgument
from rabit.launch.torch_environ import PLACE

__all__ = ["base_environ", "check_variable", "portable_environ", "user_environ"]

# Set by a launcher for the process it starts; a rank of ours must not see another's place.
_PLACEMENT = frozenset(
    {
        "RABIT_RANK",
        "RABIT_SIZE",
        "RABIT_LOCAL_RANK",
        "RABIT_LOCAL_SIZE",
        "RABIT_CROSS_RANK",
        "RABIT_CROSS_SIZE",
        "RABIT_HOST_KEY",
        "RABIT_RESTART",
        "RABIT_MIN_NP",
        "RABIT_MAX_NP",
        "RABIT_JOINS",
        "RABIT_STORE_ADDRESS",
        "RABIT_STORE_ADDRESSES",
        "RABIT_SECRET_FD",
        "RABIT_SECRET_FILE",
        "RABIT_CONFIG_FILE",
        *PLACE,
    }
)
# True of the job around a rank that starts another job: its servers are no servers of the new one.
_OF_THE_JOB_AROUND = frozenset(
    {"RABIT_SERVERS", "RABIT_SERVER_REPLICAS", "DMLC_NUM_SERVER", "DMLC_NUM_WORKER"}
)
# torchrun's marks besides those of a rank's place.
_FOREIGN_PREFIX = "TORCHELASTIC_"
# True only of the host where they are set.
_HOST_ONLY = frozenset(
    {
        "_", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "HOME", "HOSTNAME", "LOGNAME", "LS_COLORS",
        "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TEMP", "TMP", "TMPDIR", "USER", "WINDOWID",
        "XAUTHORITY",
    }
)  # fmt: skip
_HOST_ONLY_PREFIXES = ("SSH_", "XDG_", "BASH_FUNC_", "TMUX", "STY", "VSCODE_")


def base_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without the marks of another job, of which this process may be a rank."""
    foreign = _PLACEMENT
    if "RABIT_RANK" in environ:
        foreign |= _OF_THE_JOB_AROUND
        if environ.get("RABIT_BACKEND") == "ps":  # It has no other servers to mean.
            foreign |= {"RABIT_BACKEND"}
    return {
        name: value
        for name, value in environ.items()
        if name not in foreign and not name.startswith(_FOREIGN_PREFIX)
    }


def portable_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of `environ` that makes sense on another host."""
    return {
        name: value
        for name, value in base_environ(environ).items()
        if name not in _HOST_ONLY and not name.startswith(_HOST_ONLY_PREFIXES)
    }


def user_environ(given: list[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of --env NAME=VALUE; --env NAME takes the value of `environ`.

    Raises InvalidArgument for an invalid name, or one that is unset here.
    """
    found = {}
    for each in given:
        name, separator, value = each.partition("=")
        if name in _PLACEMENT:
            raise InvalidArgument(f"--env {each!r} cannot be set: rabitrun itself sets it. Leave it out.")
        check_variable(name, value, f"--env {each!r} cannot be set", "--env NAME=VALUE")
        if not separator and name not in environ:
            raise InvalidArgument(
                f"--env {name}: {name} is not set here. Export it, or use --env {name}=VALUE."
            )
        found[name] = value if separator else environ[name]
    return found


def check_variable(name: object, value: object, what: str, form: str) -> None:
    """Raises InvalidArgument for a variable that ranks cannot get from the user; what, form: for the message."""
    if not isinstance(name, str) or not isinstance(value, str):
        why = f"its name is {name!r} and its value {value!r}, and both are texts"
    elif not name or not name.isprintable() or " " in name or "=" in name:
        why = f"{name!r} is no valid name, which has neither blanks nor '='"
    elif "\0" in value:
        why = "its value holds a zero byte"
    else:
        return
    raise InvalidArgument(f"{what}: {why}. Use {form}.")
