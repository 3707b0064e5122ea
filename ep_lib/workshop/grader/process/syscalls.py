"""The system calls of a submission: a seccomp filter for those that Landlock does not cover.

Calls on other processes, on files' modes and times, on memory that outlives a process or that no limit counts, on the
network or on the whole machine fail with EPERM. Calls newer than this table fail with ENOSYS, as on an older Linux,
where programs have alternatives. https://docs.kernel.org/userspace-api/seccomp_filter.html
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import NamedTuple

_LOAD, _AND, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000  # the second: the call fails with the errno in its low half
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data, of little endian machines
_NEWEST = (
    469  # file_setattr, of Linux 6.17; from 424 on, numbers are the same everywhere. Also x32's calls are above it
)
_COLUMNS = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # of the tables below, and the architecture's mark

# Names with their numbers on x86-64 and on aarch64; None: it does not have this one.
_Numbers = tuple[int | None, int | None]
REFUSED: dict[str, _Numbers] = {
    # files' modes, owners, times and attributes: Landlock allows them for every file with a path
    **{"chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452), "chown": (92, None)},
    **{"fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None), "utimes": (235, None)},
    **{"futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6)},
    **{"fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16)},
    **{"setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469), "quotactl": (179, 60)},
    **{"quotactl_fd": (443, 443), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265)},
    **{"inotify_init": (253, None), "inotify_init1": (294, 26), "fanotify_init": (300, 262)},
    # other processes: their memory, files, priority
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272)},
    **{"process_madvise": (440, 440), "process_mrelease": (448, 448), "pidfd_getfd": (438, 438)},
    **{"setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118)},
    **{"sched_setscheduler": (144, 119), "sched_setattr": (314, 274), "migrate_pages": (256, 238)},
    **{"move_pages": (279, 239), "perf_event_open": (298, 241), "bpf": (321, 280), "userfaultfd": (323, 282)},
    # memory, messages and keys that outlive a process, or that no limit counts
    **{"shmget": (29, 194), "shmat": (30, 196), "shmctl": (31, 195), "shmdt": (67, 197), "semget": (64, 190)},
    **{"semop": (65, 193), "semctl": (66, 191), "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189)},
    **{"msgrcv": (70, 188), "msgctl": (71, 187), "mq_open": (240, 180), "mq_unlink": (241, 181)},
    **{"mq_timedsend": (242, 182), "mq_timedreceive": (243, 183), "mq_notify": (244, 184)},
    **{"mq_getsetattr": (245, 185), "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447)},
    # the network: also unix sockets, behind which there may be a container engine; and calls made behind this filter
    **{"socket": (41, 198), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426)},
    **{"io_uring_register": (427, 427), "io_setup": (206, 0), "io_submit": (209, 2)},
    # the machine, and namespaces that give a process privileges
    **{"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41)},
    **{"chroot": (161, 51), "fsopen": (430, 430), "fspick": (433, 433), "open_tree": (428, 428)},
    **{"move_mount": (429, 429), "mount_setattr": (442, 442), "open_tree_attr": (467, 467), "statmount": (457, 457)},
    **{"listmount": (458, 458), "personality": (135, 92), "modify_ldt": (154, None), "iopl": (172, None)},
    **{"ioperm": (173, None), "acct": (163, 89), "swapon": (167, 224), "swapoff": (168, 225), "reboot": (169, 142)},
    **{"sethostname": (170, 161), "setdomainname": (171, 162), "init_module": (175, 105), "finit_module": (313, 273)},
    **{"delete_module": (176, 106), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "syslog": (103, 116)},
    **{"settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266)},
    **{"vhangup": (153, 58), "sync": (162, 81), "syncfs": (306, 267)},
}
NOT_THERE: dict[str, _Numbers] = {"clone3": (435, 435)}  # a filter cannot see its flags: the C library then uses clone


class _Only(NamedTuple):
    """A call that one argument decides: refused if ``argument & mask`` is in ``values``, or if it is not."""

    numbers: _Numbers
    argument: int
    mask: int
    values: tuple[int, ...]
    refused: bool  # True: refuses the ``values``; False: refuses all others


_ALL = 0xFFFFFFFF
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS and its like
_SHARED_AND_NAMELESS = 0x21  # MAP_SHARED | MAP_ANONYMOUS: the pages stay when a process releases them
_UNIX, _STREAM = 1, 1  # asyncio's own pair: connected to each other, and never to anything else
_OWNERS = (8, 10, 15, 1024, 1026)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: signals; F_SETLEASE, F_NOTIFY: others' files
ARGUMENTS: tuple[tuple[str, _Only], ...] = (
    ("prlimit64", _Only((302, 261), 0, _ALL, (0,), refused=False)),  # 0: the process itself
    ("sched_setaffinity", _Only((203, 122), 0, _ALL, (0,), refused=False)),
    ("clone", _Only((56, 220), 0, _NEW_NAMESPACES, (0,), refused=False)),
    ("socketpair", _Only((53, 199), 0, _ALL, (_UNIX,), refused=False)),
    ("socketpair", _Only((53, 199), 1, 0xF, (_STREAM,), refused=False)),
    ("mmap", _Only((9, 222), 3, _SHARED_AND_NAMELESS, (_SHARED_AND_NAMELESS,), refused=True)),
    ("fcntl", _Only((72, 25), 1, _ALL, _OWNERS, refused=True)),
)


MACHINES = tuple(_COLUMNS)  # for which there is a filter, as ``platform.machine()`` names them


def program(machine: str = platform.machine()) -> list[bytes]:
    """The filter's instructions, struct sock_filter each."""
    column, architecture = _COLUMNS[machine]
    refuse = (_RETURN, 0, 0, _FAIL | errno.EPERM)
    not_there = (_RETURN, 0, 0, _FAIL | errno.ENOSYS)
    allow = (_RETURN, 0, 0, _ALLOW)
    steps = [  # (what to do, how many to skip if true, if false, with which number)
        *((_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), refuse),
        *((_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _NEWEST + 1), not_there),
    ]
    for numbers, verdict in [
        *((each, refuse) for each in REFUSED.values()),
        *((each, not_there) for each in NOT_THERE.values()),
    ]:
        if (number := numbers[column]) is not None:
            steps += [(_EQUAL, 0, 1, number), verdict]
    for _, only in ARGUMENTS:
        number = only.numbers[column]
        assert number is not None  # all machines have these
        last = len(only.values)
        compared = (
            [step for value in only.values for step in ((_EQUAL, 0, 1, value), refuse)]
            if only.refused
            else [*((_EQUAL, last - at, 0, value) for at, value in enumerate(only.values)), refuse]
        )
        decide = [(_LOAD, 0, 0, _ARGUMENTS + 8 * only.argument), (_AND, 0, 0, only.mask), *compared]
        steps += [(_LOAD, 0, 0, _NUMBER), (_EQUAL, 0, len(decide), number), *decide]
    return [struct.pack("=HBBI", *step) for step in [*steps, allow]]
