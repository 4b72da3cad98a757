"""Landlock, the kernel's own file and TCP rules for an unprivileged process, by its system calls (x86_64 and aarch64).

Numbers and bits: include/uapi/linux/landlock.h of Linux 6.12; what an older kernel does not know is left out by its
ABI.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
RULE_PATH_BENEATH = 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
READ = EXECUTE | READ_FILE | READ_DIR
BIND_AND_CONNECT_TCP = 3
SCOPE_ABSTRACT_UNIX_AND_SIGNAL = 3
PR_SET_NO_NEW_PRIVS = 38


def abi() -> int:
    """The kernel's version of Landlock; 0: none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return max(0, int(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def file_rights(version: int) -> int:
    """Every right about files that this version knows."""
    known = (1 << 13) - 1
    known |= REFER if version >= 2 else 0
    known |= TRUNCATE if version >= 3 else 0
    return known | (IOCTL_DEV if version >= 5 else 0)


def restrict(read: list[str], write: list[str], devices: list[str]) -> int:
    """Bind this process and all it will start: read and run `read`, everything below `write`, open `devices`.

    Returns:
        The version of Landlock. From 4 on no TCP, from 6 on no signal and no abstract socket leaves the process's own.

    Raises:
        OSError: the kernel has no Landlock, or refuses.
    """
    version = abi()
    if not version:
        raise OSError("this kernel has no Landlock")
    rights = file_rights(version)
    size = 8 if version < 4 else 16 if version < 6 else 24
    whole = struct.pack("QQQ", rights, BIND_AND_CONNECT_TCP, SCOPE_ABSTRACT_UNIX_AND_SIGNAL)
    rules = _call(CREATE_RULESET, whole[:size], ctypes.c_size_t(size), 0)
    try:
        for path in read:
            _allow(rules, path, READ & rights)
        for path in write:
            _allow(rules, path, rights)
        for path in devices:
            _allow(rules, path, (READ_FILE | WRITE_FILE | IOCTL_DEV) & rights)
        no_new_privileges()
        _call(RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)
    return version


def no_new_privileges() -> None:
    """Nothing this process runs may gain rights by its file (setuid); the kernel asks for this first."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= FILE_RIGHTS
        _call(ADD_RULE, rules, RULE_PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    found = int(libc.syscall(number, *arguments))
    if found < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"Landlock: {os.strerror(code)}")
    return found
