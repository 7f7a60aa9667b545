"""Runs the image of docs/deploy/Dockerfile as the MPI Operator does: two pods with sshd train, started by a third.

    python tests/image_pods.py ROOTFS

ROOTFS: the image's files in a folder, of `buildah mount`, or of `docker export` and tar.  The pods are containers of
runc with user, host name, network and processes of their own.  Their commands, and where the key of the job is mounted,
are those of docs/deploy/kubernetes/mpijob.yaml.  Needs root, runc, ssh-keygen and PyYAML.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))

from bench.harness.links import Lab, build

MANIFEST = Path(__file__).resolve().parents[1] / "docs" / "deploy" / "kubernetes" / "mpijob.yaml"
NAMES = ("train-worker-0", "train-worker-1", "train-launcher")
LIMIT_S = 180.0
PROGRAM = """
import os
import socket
import numpy as np
import rabit

rabit.init()
dice = np.random.default_rng(rabit.rank())
x = dice.standard_normal((256, 8))
y, w = x @ np.arange(8.0), np.zeros(8)
for step in range(100):
    gradient = rabit.allreduce(x.T @ (x @ w - y) / len(x), name="gradient")
    w -= 0.1 * gradient
hosts = rabit.allgather_object(socket.gethostname())
weights = rabit.allgather(w[None], name="weights")
assert os.getuid() == 1000, os.getuid()
assert np.abs(w - np.arange(8.0)).max() < 0.01 and (weights == w).all(), weights
if rabit.rank() == 0:
    print(f"{rabit.size()} ranks on {sorted(set(hosts))} have trained")
rabit.shutdown()
"""


def config(lab: Lab, pod: int, command: list[str], shared: Path) -> dict[str, Any]:
    """Of one container, in the form of the OCI."""

    def mount(kind: str, where: str, *options: str) -> dict[str, Any]:
        return {"type": kind, "source": kind, "destination": where, "options": list(options)}

    binds = {"/opt/rabit/.ssh": "ssh", "/etc/hosts": "hosts", "/etc/mpi": "mpi", "/opt/rabit/train.py": "train.py"}
    variables = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/opt/rabit",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMP_NUM_THREADS": "1",
    }
    return {
        "ociVersion": "1.0.2",
        "hostname": NAMES[pod],
        "root": {"path": "rootfs", "readonly": False},
        "process": {
            "terminal": False,
            "user": {"uid": 1000, "gid": 1000},
            "args": command,
            "env": [f"{name}={value}" for name, value in variables.items()],
            "cwd": "/opt/rabit",
            "noNewPrivileges": True,
        },
        "mounts": [
            mount("proc", "/proc"),
            mount("tmpfs", "/dev", "nosuid", "mode=755", "size=65536k"),
            mount("devpts", "/dev/pts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
            mount("tmpfs", "/dev/shm", "nosuid", "nodev", "mode=1777", "size=1g"),
            mount("tmpfs", "/tmp", "mode=1777"),
            *(
                {"type": "bind", "source": str(shared / name), "destination": where, "options": ["rbind", "ro"]}
                for where, name in binds.items()
            ),
        ],
        "linux": {
            "namespaces": [
                *({"type": kind} for kind in ("pid", "ipc", "uts", "mount")),
                {"type": "network", "path": f"/run/netns/{lab.namespaces[pod]}"},
            ],
        },
    }  # fmt: skip


def make_shared(folder: Path, lab: Lab) -> None:
    """The key of the job, the host file and the names, as the operator mounts them."""
    keys = folder / "ssh"
    keys.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", str(keys / "id_rsa")], check=True)
    shutil.copy(keys / "id_rsa.pub", keys / "authorized_keys")
    for path in (keys, *keys.iterdir()):
        os.chown(path, 1000, 1000)
    (folder / "mpi").mkdir()
    (folder / "mpi" / "hostfile").write_text("".join(f"{name} slots=2\n" for name in NAMES[:2]))
    addresses = [f"{lab.address(pod)} {name}" for pod, name in enumerate(NAMES)]
    (folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *addresses, ""]))
    (folder / "train.py").write_text(PROGRAM)
    folder.chmod(0o755)


def commands() -> list[list[str]]:
    """What each pod runs, from the manifest."""
    replicas = yaml.safe_load(MANIFEST.read_text())["spec"]["mpiReplicaSpecs"]
    kinds = ("Worker", "Worker", "Launcher")
    found = [replicas[kind]["template"]["spec"]["containers"][0]["command"] for kind in kinds]
    # Debian has python3 alone.
    return [["python3" if word == "python" else word for word in command] for command in found]


def is_listening(lab: Lab, pod: int) -> bool:
    query = [*lab.command(pod), "ss", "-Hltn", "sport = :2222"]
    return bool(subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip())


def overlaid(root: Path, bundle: Path) -> None:
    """The image's files at bundle/rootfs; what is written there stays beside them."""
    for name in ("rootfs", "upper", "work"):
        (bundle / name).mkdir(parents=True)
    layers = f"lowerdir={root},upperdir={bundle}/upper,workdir={bundle}/work"
    mount = ["mount", "-t", "overlay", "overlay", "-o", layers, str(bundle / "rootfs")]
    subprocess.run(mount, check=True)


def run_pods(lab: Lab, root: Path, folder: Path) -> int:
    """The status of the launcher."""
    shared = folder / "shared"
    shared.mkdir()
    make_shared(shared, lab)
    runc = ["runc", "--root", str(folder / "runc")]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for pod, command in enumerate(commands()):
            bundle = folder / NAMES[pod]
            overlaid(root, bundle)
            (bundle / "config.json").write_text(json.dumps(config(lab, pod, command, shared)))
            if pod == len(NAMES) - 1:
                deadline = time.monotonic() + LIMIT_S
                while not all(is_listening(lab, worker) for worker in range(pod)):
                    assert time.monotonic() < deadline, "sshd does not listen at port 2222"
                    time.sleep(0.1)
            name = f"{lab.bridge}-{pod}"
            started.append(subprocess.Popen([*runc, "run", "--bundle", str(bundle), name]))
        return started[-1].wait(LIMIT_S)
    finally:
        for pod, process in enumerate(started):
            name = f"{lab.bridge}-{pod}"
            subprocess.run([*runc, "delete", "--force", name], capture_output=True, check=False)
            process.wait(LIMIT_S)
            subprocess.run(["umount", str(folder / NAMES[pod] / "rootfs")], check=True)


def main(words: list[str]) -> int:
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="image-") as name, build(len(NAMES), 10e9) as lab:
        Path(name).chmod(0o755)
        return run_pods(lab, Path(words[0]), Path(name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
