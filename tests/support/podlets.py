"""Pods of an Indexed Job on this machine: a container of runc for each, with what its manifest says.

A pod has host name, network, processes, /dev/shm, memory limit, variables and mounted Secret of its own; programs are
those of this machine, read-only.  It runs as root, because Python may lie in a folder that root alone can read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from bench.harness.links import Lab, build, why_not

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = ROOT / "docs" / "deploy" / "kubernetes" / "indexed-job.yaml"
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


def missing() -> str:
    """Why there can be no pods here; "": there can."""
    if shutil.which("runc") is None:
        return "not installed: runc"
    if reason := why_not():
        return reason
    if (
        not Path("/sys/fs/cgroup/memory").is_dir()
        and not Path("/sys/fs/cgroup/cgroup.controllers").exists()
    ):
        return "there is no cgroup for memory limits"
    return ""


class Pods:
    """The pods of one Job.  Pod N is named train-N, and has the network of the lab's host N."""

    def __init__(
        self, folder: Path, lab: Lab, command: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        documents = list(yaml.safe_load_all(MANIFEST.read_text()))
        self._spec: dict[str, Any] = documents[1]["spec"]["template"]["spec"]
        self._container = self._spec["containers"][0]
        self._folder, self._lab = folder, lab
        self._command, self._environ = command, environ
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._key = f"{lab.bridge}-train"
        (folder / "secret").mkdir()
        (folder / "secret" / "key").write_text("5a" * 32)

    @property
    def grace_s(self) -> float:
        return float(self._spec["terminationGracePeriodSeconds"])

    def start(
        self,
        index: int,
        *,
        memory: str = "1Gi",
        shm: str = "64Mi",
        knows_names: bool = True,
        more: Sequence[str] = (),
    ) -> None:
        """Starts pod `index`.  more: words behind the command.  knows_names: of the other pods."""
        bundle = self._folder / f"pod{index}"
        _make_root(bundle / "rootfs")
        if knows_names:
            self.publish_names(index)
        config = self._config(index, [*self._command, *more], _bytes(memory), _bytes(shm))
        (bundle / "config.json").write_text(json.dumps(config))
        with self._log(index).open("wb") as log:
            self._running[index] = subprocess.Popen(
                ["runc", "--root", str(self._folder / "runc"), "run", "--bundle", str(bundle), self._name(index)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def publish_names(self, index: int) -> None:
        """From now on pod `index` resolves the names of all, as the headless Service has them."""
        count = len(self._lab.namespaces)
        names = [f"{self._lab.address(pod)} train-{pod}.train train-{pod}" for pod in range(count)]
        hosts = self._folder / f"pod{index}" / "rootfs" / "etc" / "hosts"
        hosts.write_text("\n".join(["127.0.0.1 localhost", *names, ""]))

    def is_listening(self, index: int, port: int = 29400) -> bool:
        done = subprocess.run(
            [*self._lab.command(index), "ss", "-Hltn", f"sport = :{port}"],
            capture_output=True,
            text=True,
            check=True,
        )
        return bool(done.stdout.strip())

    def terminate(self, index: int) -> None:
        """SIGTERM for the first process of the pod, as the kubelet begins."""
        runc = ["runc", "--root", str(self._folder / "runc"), "kill", self._name(index), "TERM"]
        subprocess.run(runc, check=True, timeout=30)

    def status(self, index: int, timeout: float) -> int:
        """The exit status of the pod; blocks until it has ended."""
        return self._running[index].wait(timeout)

    def text(self, index: int) -> str:
        return self._log(index).read_text(errors="replace")

    def close(self) -> None:
        for index, process in self._running.items():
            with contextlib.suppress(subprocess.SubprocessError):
                subprocess.run(
                    ["runc", "--root", str(self._folder / "runc"), "delete", "--force", self._name(index)],
                    capture_output=True, timeout=30, check=False,
                )  # fmt: skip
            process.kill()
            process.wait()

    def _name(self, index: int) -> str:
        return f"{self._key}-{index}"

    def _log(self, index: int) -> Path:
        return self._folder / f"pod{index}.log"

    def _config(self, index: int, command: Sequence[str], memory: int, shm: int) -> dict[str, Any]:
        variables = {
            **{each["name"]: each["value"] for each in self._container["env"]},
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
            "HOSTNAME": f"train-{index}",
            "JOB_COMPLETION_INDEX": str(index),
            "OMP_NUM_THREADS": "1",
            **self._environ,
        }
        return {
            "ociVersion": "1.0.2",
            "hostname": f"train-{index}",
            "root": {"path": "rootfs", "readonly": False},
            "process": {
                "terminal": False,
                "user": {"uid": 0, "gid": 0},
                "args": list(command),
                "env": [f"{name}={value}" for name, value in variables.items()],
                "cwd": "/tmp",
                "noNewPrivileges": True,
            },
            "mounts": self._mounts(shm),
            "linux": {
                "cgroupsPath": f"/{self._name(index)}",
                "resources": {"memory": {"limit": memory}},
                "namespaces": [
                    *({"type": kind} for kind in ("pid", "ipc", "uts", "mount")),
                    {"type": "network", "path": f"/run/netns/{self._lab.namespaces[index]}"},
                ],
            },
        }

    def _mounts(self, shm: int) -> list[dict[str, Any]]:
        def mount(kind: str, where: str, *options: str) -> dict[str, Any]:
            return {"type": kind, "source": kind, "destination": where, "options": list(options)}

        found = [
            mount("proc", "/proc"),
            mount("tmpfs", "/dev", "nosuid", "mode=755", "size=65536k"),
            mount("tmpfs", "/dev/shm", "nosuid", "nodev", "mode=1777", f"size={shm}"),
            mount("tmpfs", "/tmp", "mode=1777"),
            mount("sysfs", "/sys", "nosuid", "noexec", "nodev", "ro"),
        ]
        secret = self._container["volumeMounts"][0]
        # Of /tmp, which a pod has for itself, no more than these.
        places = (Path(place) for place in (ROOT, sys.prefix, sys.base_prefix))
        shared = {str(each) if each.parts[1] == "tmp" else f"/{each.parts[1]}" for each in places} - {"/etc"}
        binds = {
            **{name: name for name in shared | {"/usr"}},
            secret["mountPath"]: str(self._folder / "secret"),
        }
        return found + [
            {"type": "bind", "source": source, "destination": where, "options": ["rbind", "ro"]}
            for where, source in binds.items()
        ]


@contextmanager
def pods(folder: Path, count: int, command: Sequence[str], **environ: str) -> Iterator[Pods]:
    """The network of `count` pods, which run `command`; whatever still runs at the end of the block is killed."""
    with build(count, 10e9) as lab:
        made = Pods(folder, lab, command, {"RABIT_SIZE": str(count), **environ})
        try:
            yield made
        finally:
            made.close()


def _make_root(root: Path) -> None:
    (root / "etc").mkdir(parents=True)
    for name in ("passwd", "group", "nsswitch.conf", "ld.so.cache"):
        with contextlib.suppress(FileNotFoundError):
            shutil.copy(Path("/etc", name), root / "etc" / name)
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(Path("/", name).readlink())


def _bytes(text: str) -> int:
    return int(text[:-2]) * _UNITS[text[-2:]]
