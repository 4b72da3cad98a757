"""A filter of system calls: no network of any kind, no other process's memory, no new mounts and namespaces.

A denied call fails with EPERM; clone3, whose flags a filter cannot see, is said to be missing (ENOSYS): the C library
then takes clone. Sockets are left that reach nobody without `connect`, which is denied: local ones with a connection. A
datagram needs none, so a pair of such is denied too. Numbers are those of x86_64 and aarch64; on other machines there
is no filter.
"""

from __future__ import annotations

import ctypes
import platform
import struct

PR_SET_SECCOMP, MODE_FILTER = 22, 2
LOAD, JUMP_EQUAL, JUMP_AT_LEAST, JUMP_ANY_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
ALLOW, DENY, MISSING, KILL = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38, 0x80000000
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
"""Offsets in struct seccomp_data; the arguments are 64 bits wide, little-endian, and what is asked of them fits into
the low half.
"""
AF_UNIX, SOCK_STREAM, SOCK_SEQPACKET, SOCK_TYPE = 1, 1, 5, 0xF
NEW_NAMESPACES = 0x7E020000
"""Flags of clone: CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET."""
X32 = 0x40000000

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SOCKET = {"x86_64": 41, "aarch64": 198}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
CLONE = {"x86_64": 56, "aarch64": 220}
CLONE3 = 435
DENIED = {
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "ptrace": (101, 117),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "pidfd_getfd": (438, 438),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
}
"""Name -> number on x86_64 and aarch64. io_uring can open sockets unseen by this filter. connect: sockets of the file
system (a container engine's, say) are reached by it.
"""


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    """One instruction: struct sock_filter."""
    return struct.pack("HBBI", code, yes, no, value)


def program(machine: str) -> bytes:
    """The filter for a machine."""
    column = 0 if machine == "x86_64" else 1
    start = [step(LOAD, ARCHITECTURE), step(JUMP_EQUAL, MACHINES[machine], 1, 0), step(RETURN, KILL)]
    start += [step(LOAD, NUMBER), step(JUMP_AT_LEAST, X32, 0, 1), step(RETURN, DENY)]
    for numbers in DENIED.values():
        start += [step(JUMP_EQUAL, numbers[column], 0, 1), step(RETURN, DENY)]
    start += [step(JUMP_EQUAL, CLONE3, 0, 1), step(RETURN, MISSING)]
    start += [step(JUMP_EQUAL, CLONE[machine], 0, 4), step(LOAD, FIRST_ARGUMENT)]
    start += [step(JUMP_ANY_BIT, NEW_NAMESPACES, 0, 1), step(RETURN, DENY), step(RETURN, ALLOW)]
    start += [step(JUMP_EQUAL, SOCKET[machine], 2, 0), step(JUMP_EQUAL, SOCKETPAIR[machine], 1, 0), step(RETURN, ALLOW)]
    start += [step(LOAD, FIRST_ARGUMENT), step(JUMP_EQUAL, AF_UNIX, 1, 0), step(RETURN, DENY)]
    start += [step(LOAD, SECOND_ARGUMENT), step(AND, SOCK_TYPE)]
    start += [step(JUMP_EQUAL, SOCK_STREAM, 2, 0), step(JUMP_EQUAL, SOCK_SEQPACKET, 1, 0)]
    return b"".join([*start, step(RETURN, DENY), step(RETURN, ALLOW)])


def install() -> bool:
    """Put the filter on this process and all it will start; needs no_new_privs. False: not a known machine.

    Raises:
        OSError: the kernel refuses.
    """
    machine = platform.machine()
    if machine not in MACHINES:
        return False
    code = ctypes.create_string_buffer(program(machine))
    whole = Program(len(code.raw) // 8, ctypes.addressof(code))
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.byref(whole)):
        raise OSError(ctypes.get_errno(), "PR_SET_SECCOMP")
    return True
