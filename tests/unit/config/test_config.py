"""Config: where values come from, what is refused, and what it writes."""

from __future__ import annotations

import dataclasses
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rabit import Config, InvalidArgument
from rabit.config import byteps, horovod
from rabit.config.reference import reference_markdown
from rabit.config.sources import FOREIGN_PREFIXES

ROOT = Path(__file__).resolve().parents[3]


def native_rows() -> dict[str, str]:
    """key -> the rest of its row in the native table of options."""
    text = (ROOT / "native" / "abi" / "options.cc").read_text()
    rows = re.findall(r'\{"(\w+)", (&Options::[^}]*)\}', text)
    assert len(rows) > 20
    return dict(rows)


def test_defaults_are_a_job_of_one():
    config = Config.from_environ({})

    assert (config.rank, config.size) == (0, 1)
    assert config == Config()


def test_the_environment_is_read():
    config = Config.from_environ(
        {
            "RABIT_FUSION_BYTES": "64K",
            "RABIT_STALL_ABORT": "500ms",
            "RABIT_TRANSPORT": "TCP",
            "RABIT_DETERMINISTIC": "1",
            "PATH": "/bin",
        }
    )

    assert config.fusion_bytes == 65536
    assert config.stall_abort == 0.5
    assert config.transport == "tcp"
    assert config.deterministic is True


def test_an_argument_wins_over_the_environment_and_none_does_not():
    environ = {"RABIT_LANES": "3"}

    assert Config.from_environ(environ, lanes=5).lanes == 5
    assert Config.from_environ(environ, lanes=None).lanes == 3


def test_an_unknown_variable_names_the_nearest():
    with pytest.raises(InvalidArgument) as caught:
        Config.from_environ({"RABIT_FUSION_BYTE": "1"})

    assert str(caught.value) == (
        "the environment variable RABIT_FUSION_BYTE is unknown to rabit: did you mean "
        "RABIT_FUSION_BYTES? Correct or unset it; every variable is in docs/reference/config.md."
    )


def test_an_unknown_argument_names_the_nearest():
    with pytest.raises(InvalidArgument, match=r"no field 'lane': did you mean lanes\?"):
        Config.from_environ({}, lane=1)


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("RABIT_SIZE", "-2", "an integer, at least 1"),
        ("RABIT_LANES", "", "an integer, between 0 and 64"),
        ("RABIT_TRANSPORT", "carrier-pigeon", "one of auto, tcp, shm"),
        ("RABIT_PARTITION_BYTES", "4Q", "a size such as"),
        ("RABIT_CONNECT_TIMEOUT", "soon", "a duration such as"),
        ("RABIT_DETERMINISTIC", "maybe", "0 or 1"),
    ],
)
def test_a_malformed_value_names_variable_value_and_expectation(variable, value, expected):
    with pytest.raises(ValueError, match="is not valid") as caught:
        Config.from_environ({variable: value})

    message = str(caught.value)
    assert variable in message
    assert value in message
    assert expected in message


@pytest.mark.parametrize(
    "wrong", [{"rank": 2, "size": 2}, {"local_rank": 1}, {"cross_rank": 4, "cross_size": 4}]
)
def test_a_rank_lies_below_its_size(wrong):
    with pytest.raises(InvalidArgument, match="ranks count from 0"):
        Config(**wrong)


def test_a_secret_has_32_bytes():
    with pytest.raises(InvalidArgument, match="the secret has 3 bytes: expected 32"):
        Config(secret=b"abc")


def test_the_secret_is_not_shown_and_not_passed_on():
    secret = bytes(range(32))
    config = Config(secret=secret)

    assert "secret=" not in repr(config)
    assert secret.hex() not in repr(config)
    assert config.to_environ() == {}
    assert f"secret={secret.hex()}\n" in config.to_options()


def test_a_secret_in_the_environment_is_an_unknown_variable():
    with pytest.raises(InvalidArgument, match="RABIT_SECRET is unknown"):
        Config.from_environ({"RABIT_SECRET": "00" * 32})


def test_fields_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().lanes = 3  # type: ignore[misc]


def test_a_name_that_is_no_setting_is_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'lane'"):
        Config(lane=3)  # type: ignore[call-arg]


def test_a_copy_through_pickle_is_equal_and_knows_its_origins():
    config = Config(lanes=7).replace(rank=1, size=2)

    copy = pickle.loads(pickle.dumps(config))

    assert copy == config and hash(copy) == hash(config) and copy != Config()
    assert copy.origin("rank") == config.origin("rank") == "set in code"


def test_the_environment_that_it_writes_reads_back():
    config = Config(
        lanes=7,
        fusion_bytes=3 << 20,
        stall_abort=0.25,
        deterministic=True,
        timeline="/tmp/a b.json",
    )

    assert Config.from_environ(config.to_environ()) == config


def test_options_are_lines_with_units():
    lines = Config(connect_timeout=2.5, deterministic=True).to_options(epoch=3).splitlines()

    assert "connect_timeout_ms=2500" in lines
    assert "deterministic=1" in lines
    assert "epoch=3" in lines
    assert not any(line.endswith("=") for line in lines)


def test_the_native_table_has_the_same_keys():
    # Which the engine's own tests alone set.
    without_a_setting = {"operation_timeout_ms", "queue_capacity", "tcp_connections"}
    mine = {each.native for each in Config.settings() if each.native} | {
        "epoch",
        "equal_settings",
        "lanes_max",
        "member",
        "members",
        "mpi",
        "operation_log",
        "record",
        "route_table",
    }

    assert mine == set(native_rows()) - without_a_setting


def test_every_setting_lies_in_the_native_range():
    rows = native_rows()
    for each in Config.settings():
        if not each.native or each.kind in ("text", "choice", "bool", "secret"):
            continue
        numbers = rows[each.native].replace("'", "").split(",")[1:3]
        low = int(numbers[0])
        assert float(each.native_value(each.minimum or 0)) >= low, each.name


def test_choices_are_those_of_the_native_table():
    rows = native_rows()
    for each in Config.settings():
        if each.native and each.kind == "choice":
            words = re.search(r'0, 0, "([a-z ]+)"', rows[each.native])
            assert words is not None
            assert tuple(words.group(1).split()) == each.choices, each.name


def test_every_setting_is_described_and_flags_are_unique():
    settings = Config.settings()
    flags = [each.flag for each in settings if each.flag]

    assert all(each.help.endswith(".") for each in settings)
    assert len(flags) == len(set(flags))
    assert all(
        flag == "--" + each.name.replace("_", "-") for each in settings if (flag := each.flag)
    )


def test_there_are_few_settings_for_people_and_fewer_for_everyone():
    levels = [each.level for each in Config.settings()]

    assert set(levels) == {"basic", "expert", "hidden"}
    assert levels.count("basic") <= 25
    assert levels.count("basic") + levels.count("expert") <= 60
    assert not any(each.flag for each in Config.settings() if each.level == "hidden")


def test_numbers_are_printed_as_people_write_them():
    page = reference_markdown()

    assert "between 1 and 1 TiB" in page and "between 1s and 24h" in page
    assert not re.search(r"\de\+\d", page)


@pytest.mark.parametrize(
    ("environ", "overlap", "notices"),
    [
        ({"RABIT_CROSS_BARRIER": "1"}, "next-forward", 1),
        ({"RABIT_SCHEDULE": "auto"}, "auto", 1),
        ({"RABIT_SCHEDULE": "auto", "RABIT_CROSS_BARRIER": "1"}, "auto", 1),
        ({"RABIT_SCHEDULE": "fixed", "RABIT_CROSS_BARRIER": "0"}, "backward", 0),
        ({"RABIT_SCHEDULE": "auto", "RABIT_OVERLAP": "none"}, "none", 0),
    ],
)
def test_older_names_of_the_overlap_are_accepted_with_one_notice(environ, overlap, notices):
    config = Config.from_environ(environ)

    assert (config.overlap, len(config.notices)) == (overlap, notices)


def test_older_names_stand_in_files_as_well(tmp_path):
    path = tmp_path / "rabit.toml"
    path.write_text('cross_barrier = true\nschedule = "fixed"\n')

    config = Config.from_environ({"RABIT_CONFIG_FILE": str(path)})

    assert config.overlap == "next-forward"
    assert config.notices == (f"older names in {path}: cross_barrier is overlap: next-forward",)


def test_the_reference_names_every_variable():
    page = reference_markdown()

    for each in Config.settings():
        assert f"`{each.variable or 'Config.' + each.name}`" in page


def test_the_reference_page_is_current():
    page = ROOT / "docs" / "reference" / "config.md"

    command = "python -m rabit.config.reference > docs/reference/config.md"
    assert page.read_text() == reference_markdown(), f"run {command}"


def test_only_config_reads_the_environment():
    """The launcher hands the environment on to the ranks and is no reader of settings."""
    readers = {
        path.relative_to(ROOT).as_posix()
        for package in ("rabit", "rabit_torch")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"\bos\.environ\b|\bgetenv\b", path.read_text())
    }

    assert {each for each in readers if not each.startswith("rabit/launch/")} == {
        "rabit/config/config.py"
    }


# --- Horovod ----------------------------------------------------------------------------------


def test_variables_of_horovod_are_honoured_with_one_notice():
    config = Config.from_environ(
        {
            "HOROVOD_FUSION_THRESHOLD": "1048576",
            "HOROVOD_STALL_CHECK_TIME_SECONDS": "7",
            "HOROVOD_LOG_LEVEL": "TRACE",
            "HOROVOD_CYCLE_TIME": "5",
        }
    )

    assert (config.fusion_bytes, config.stall_warning, config.log_level) == (1 << 20, 7.0, "debug")
    (notice,) = config.notices
    assert "HOROVOD_FUSION_THRESHOLD as RABIT_FUSION_BYTES" in notice
    assert "HOROVOD_CYCLE_TIME (rabit wakes on work and has no cycle)" in notice


def test_our_variable_wins_over_horovods():
    config = Config.from_environ(
        {
            "HOROVOD_CACHE_CAPACITY": "7",
            "RABIT_CACHE_CAPACITY": "9",
            "HOROVOD_STALL_CHECK_DISABLE": "1",
            "RABIT_STALL_WARNING": "3",
            "RABIT_STALL_ABORT": "60",
        }
    )

    assert (config.cache_capacity, config.stall_warning, config.stall_abort) == (9, 3.0, 60.0)
    assert config.notices == ()


def test_disabled_stall_check_means_never():
    config = Config.from_environ({"HOROVOD_STALL_CHECK_DISABLE": "1"})

    assert (config.stall_warning, config.stall_abort) == (0, 0)


def test_a_stall_ends_the_job_by_default_long_after_the_warning():
    assert (Config().stall_warning, Config().stall_abort) == (10, 1800)


def test_a_malformed_variable_of_horovod_is_an_error():
    with pytest.raises(InvalidArgument, match="HOROVOD_FUSION_THRESHOLD is 'big'"):
        Config.from_environ({"HOROVOD_FUSION_THRESHOLD": "big"})


def test_unknown_variables_of_horovod_are_left_alone():
    assert Config.from_environ({"HOROVOD_GPU_OPERATIONS": "NCCL"}).notices == ()


@pytest.mark.parametrize("theirs", [horovod, byteps])
def test_every_foreign_variable_has_a_prefix_that_is_looked_for(theirs):
    names = {each.variable for each in theirs.TWINS} | set(theirs.VARIABLES_WITHOUT_EFFECT)

    assert [name for name in names if name and not name.startswith(FOREIGN_PREFIXES)] == []


# --- configuration file -----------------------------------------------------------------------


def test_a_toml_file_is_read_below_the_environment(tmp_path):
    path = tmp_path / "rabit.toml"
    path.write_text('fusion-bytes = "1M"\nlanes = 4\nnetwork_interfaces = ["a", "b"]\n')
    config = Config.from_environ({"RABIT_CONFIG_FILE": str(path), "RABIT_LANES": "5"})

    assert (config.fusion_bytes, config.lanes) == (1 << 20, 5)
    assert config.network_interfaces == "a,b"


def test_a_yaml_file_is_read(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "rabit.yaml"
    path.write_text("fusion_bytes: 1M\ndeterministic: true\n")
    config = Config.from_environ({}, config_file=str(path))

    assert (config.fusion_bytes, config.deterministic) == (1 << 20, True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lames = 4", "sets 'lames', which is unknown: did you mean lanes?"),
        ("secret = 'x'", "which is unknown"),
        ("lanes = true", "lanes in .* is True, which is not valid"),
        ("lanes = ", "is not valid TOML"),
    ],
)
def test_a_wrong_file_is_an_error(tmp_path, text, message):
    path = tmp_path / "rabit.toml"
    path.write_text(text)

    with pytest.raises(InvalidArgument, match=message.replace("?", r"\?")):
        Config.from_environ({}, config_file=str(path))


def test_a_missing_file_is_an_error():
    with pytest.raises(InvalidArgument, match=r"/nowhere/x.toml cannot be read"):
        Config.from_environ({}, config_file="/nowhere/x.toml")


# --- where values come from -------------------------------------------------------------------


def test_the_sections_of_horovods_file_are_read_without_the_launcher(tmp_path):
    pytest.importorskip("yaml")
    path = tmp_path / "horovod.yaml"
    path.write_text(
        "params:\n  fusion_threshold_mb: 32\n  cycle_time_ms: 3\n"
        "stall_check:\n  enabled: false\ntcp_checksum: on\n"
    )

    config = Config.from_environ({"RABIT_CONFIG_FILE": str(path)})

    assert (config.fusion_bytes, config.stall_warning) == (32 << 20, 0.0)
    assert config.tcp_checksum == "on"
    assert config.notices == (f"without effect in {path}: params.cycle_time_ms",)


def test_every_key_of_horovods_file_is_known_with_either_dash(tmp_path):
    path = tmp_path / "horovod.toml"
    path.write_text(
        "[params]\nfusion-threshold-mb = 32\n"
        "[library_options]\nccl_bgt_affinity = 1\n[logging]\nhide_timestamp = true\n"
    )

    config = Config.from_environ({}, config_file=str(path))

    assert config.fusion_bytes == 32 << 20


def test_a_stall_check_that_is_off_in_the_file_is_off_whatever_its_times(tmp_path):
    path = tmp_path / "horovod.toml"
    path.write_text("[stall_check]\nenabled = false\nwarning_time_seconds = 120\n")

    config = Config.from_environ({}, config_file=str(path))

    assert (config.stall_warning, config.stall_abort) == (0.0, 0.0)


def test_an_unknown_key_of_a_file_lists_each_known_one_once(tmp_path):
    path = tmp_path / "rabit.toml"
    path.write_text("xyzzy = 1")

    with pytest.raises(InvalidArgument, match="known: ") as caught:
        Config.from_environ({}, config_file=str(path))

    known = str(caught.value).partition("known: ")[2].split(", ")
    assert len(known) == len(set(known))


def test_each_value_remembers_its_source(tmp_path):
    path = tmp_path / "rabit.toml"
    path.write_text("credit_bytes = 7\nlanes = 3\n")
    config = Config.from_environ(
        {"RABIT_CONFIG_FILE": str(path), "RABIT_LANES": "5", "HOROVOD_CACHE_CAPACITY": "9"},
        scheduler="fifo",
    ).replace(deterministic=True)

    assert config.origin("lanes") == "RABIT_LANES"
    assert config.origin("credit_bytes") == f"credit_bytes in {path}"
    assert config.origin("cache_capacity") == "HOROVOD_CACHE_CAPACITY"
    assert config.origin("scheduler") == "argument of Config.from_environ"
    assert config.origin("deterministic") == "set in code"
    assert config.origin("timeline") == "default"
    assert Config(lanes=3).origin("lanes") == "set in code"


def test_a_value_that_is_replaced_by_itself_keeps_its_source():
    config = Config.from_environ({"RABIT_LANES": "5"})

    assert config.replace(lanes=5).origin("lanes") == "RABIT_LANES"
    assert config.replace(lanes=6).origin("lanes") == "set in code"


def test_explain_shows_value_source_and_meaning_and_no_secret():
    text = Config.from_environ({"RABIT_LANES": "5"}, secret=bytes(range(32))).explain()

    assert "  lanes = 5  (RABIT_LANES)\n      Worker threads for each backend;" in text
    assert "  scheduler = priority  (default)\n" in text
    assert bytes(range(32)).hex() not in text
    assert all(f"  {each.name} = " in text for each in Config.settings())


def test_what_is_compared_are_the_settings_that_must_be_equal():
    config = Config.from_environ({"RABIT_SCHEDULER": "fifo"})

    entries = [entry.split("\x1f") for entry in config.equal_settings().split("\x1e")]

    assert ["scheduler", "fifo", "RABIT_SCHEDULER"] in entries
    assert [name for name, _, _ in entries] == [
        each.name for each in Config.settings() if each.is_equal
    ]
    assert not {"rank", "host_key", "bind_address", "log_level"} & {name for name, _, _ in entries}


def test_an_origin_cannot_break_the_options(tmp_path):
    folder = tmp_path / "a\nb\x1ec"
    folder.mkdir()
    path = folder / "rabit.toml"
    path.write_text("lanes = 3\n")

    config = Config.from_environ({}, config_file=None).replace_from(f"lanes in {path}", lanes=3)

    assert config.equal_settings().count("\x1e") == Config().equal_settings().count("\x1e")
    assert "\n" not in config.equal_settings()


def test_bytes_are_never_compared_with_text():
    """`python -bb` makes an error of it, as some test suites of users do."""
    program = "import rabit; rabit.init(); assert rabit.allreduce(1.0) == 1.0; rabit.shutdown()"

    done = subprocess.run(
        [sys.executable, "-bb", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
