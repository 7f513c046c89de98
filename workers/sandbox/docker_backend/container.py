"""What a container is made of, in the engine's own form.

Invariants: no network, no capability for the agent, no privilege to gain; the image is read-only and everything
that can be written is memory of a bounded size, which counts against the container's own limit; processes,
memory and time are bounded by its cgroup. Protected mounts belong to root, and the agent is not root.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from workers.sandbox.docker_backend.scripts import FIRST
from workers.sandbox.protocol import SandboxSpec

Json = dict[str, object]
AGENT = "1000:1000"
HOME = "/home/agent"
_OWN_PROCESSES = 8  # the first one and those around each command
_PROTECTED_MB, _SMALL_MB = 64, 16
_CPU_PERIOD_US = 100_000
_SECCOMP_REFUSED = (
    "unshare", "setns", "mount", "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen",
    "fsconfig", "fsmount", "fspick", "mount_setattr", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "bpf", "perf_event_open", "userfaultfd", "add_key", "request_key", "keyctl",
    "name_to_handle_at", "open_by_handle_at", "init_module", "finit_module", "delete_module", "kexec_load",
    "kexec_file_load", "swapon", "swapoff", "reboot", "syslog", "acct", "quotactl", "quotactl_fd",
    "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "iopl", "ioperm", "personality",
    "move_pages", "migrate_pages", "mbind", "ptrace", "process_vm_readv", "process_vm_writev", "kcmp",
    "lookup_dcookie", "nfsservctl", "uselib", "ustat", "vhangup", "fanotify_init",
)  # fmt: skip
_FAMILIES = (1, 2, 10, 16)  # UNIX, INET, INET6, NETLINK: the rest reaches past the network namespace
_NAMESPACE_FLAGS = 0x7E020080
_ERRNO_ENOSYS, _ERRNO_EAFNOSUPPORT, _ERRNO_EPERM = 38, 97, 1
_HIGHEST_FAMILY = 64


def request(image: str, spec: SandboxSpec, user: str, labels: Mapping[str, str]) -> Json:
    """The body of the engine's request for one container."""
    ids = user.partition(":")
    own = f"uid={ids[0]},gid={ids[2] or ids[0]},mode=0755"
    limits = spec.limits
    sized = f"size={limits.storage_mb}m,nr_inodes={limits.inodes}"
    small = f"rw,exec,nosuid,nodev,size={_SMALL_MB}m,nr_inodes={limits.inodes}"
    mounts = [_volume(spec.workspace_path, f"{sized},{own},nosuid,nodev", labels)]
    mounts += [
        _volume(item.path, f"size={_PROTECTED_MB}m,mode=0755,nosuid,nodev", labels) for item in spec.read_only
    ]
    # What is written is memory: the two limits together, so that files never take what programs were promised.
    memory = (limits.memory_mb + limits.storage_mb) << 20
    host: Json = {
        "AutoRemove": True,
        "Init": True,
        "NetworkMode": "none",
        "IpcMode": "private",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": ["KILL"],
        "SecurityOpt": ["no-new-privileges", f"seccomp={json.dumps(_seccomp())}"],
        "Memory": memory,
        "MemorySwap": memory,
        "PidsLimit": limits.pids + _OWN_PROCESSES,
        "CpuPeriod": _CPU_PERIOD_US,
        "CpuQuota": max(1000, int(limits.cpus * _CPU_PERIOD_US)),
        "OomScoreAdj": 500,
        "LogConfig": {"Type": "none"},
        "ShmSize": limits.storage_mb << 20,
        "Mounts": mounts,
        "Tmpfs": {
            "/tmp": f"rw,exec,nosuid,nodev,{sized},mode=1777",
            "/var/tmp": f"{small},mode=1777",
            "/run": f"{small},mode=0755",
            HOME: f"{small},{own}",
        },
        "Ulimits": [
            _ulimit("nofile", limits.open_files),
            _ulimit("core", 0),
            _ulimit("fsize", limits.storage_mb << 20),
            _ulimit("memlock", 1 << 16),
            _ulimit("msgqueue", 1 << 16),
        ],
    }
    return {
        "Image": image,
        "Entrypoint": ["/bin/sh", "-c", FIRST, "first", spec.workspace_path],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Labels": dict(labels),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }


def _volume(path: str, options: str, labels: Mapping[str, str]) -> Json:
    """A nameless volume in memory. Unlike a plain tmpfs the engine can copy into it and out of it."""
    driver = {"Name": "local", "Options": {"type": "tmpfs", "device": "tmpfs", "o": options}}
    return {
        "Type": "volume",
        "Target": path,
        "VolumeOptions": {"NoCopy": True, "Labels": dict(labels), "DriverConfig": driver},
    }


def _ulimit(name: str, value: int) -> Json:
    return {"Name": name, "Soft": value, "Hard": value}


def _seccomp() -> Json:
    """As for every other backend's sandboxes. The engine's own profile lets AF_VSOCK through to the host."""
    rules: list[Json] = [
        {"names": list(_SECCOMP_REFUSED), "action": "SCMP_ACT_ERRNO", "errnoRet": _ERRNO_EPERM},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ERRNO_ENOSYS},
    ]
    for flag in (1 << bit for bit in range(32) if _NAMESPACE_FLAGS >> bit & 1):
        test = {"index": 0, "value": flag, "valueTwo": flag, "op": "SCMP_CMP_MASKED_EQ"}
        rules.append(
            {"names": ["clone"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ERRNO_EPERM, "args": [test]}
        )
    rules += [
        _no_family(family, "SCMP_CMP_EQ") for family in range(_HIGHEST_FAMILY) if family not in _FAMILIES
    ]
    rules.append(_no_family(_HIGHEST_FAMILY, "SCMP_CMP_GE"))
    return {"defaultAction": "SCMP_ACT_ALLOW", "syscalls": rules}


def _no_family(family: int, operator: str) -> Json:
    test = {"index": 0, "value": family, "op": operator}
    return {
        "names": ["socket", "socketpair"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ERRNO_EAFNOSUPPORT,
        "args": [test],
    }  # fmt: skip
