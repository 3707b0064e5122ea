"""The puzzles of notebook 04: publish a command, wait for room, a number for each thread, what a proxy may take."""

from __future__ import annotations

import numpy as np

from ep_lib.workshop.course.puzzles.puzzle import Bench, Flow, Puzzle

_COMMANDS, _SLOTS = 12, 4


def _publish(bench: Bench) -> None:
    slot, number = bench.array("slot", np.zeros(2, np.uint64)), bench.array("number", np.zeros(1, np.uint64))
    taken = bench.array("taken", np.zeros(2, np.uint64))
    bench.launch(2, 1, slot, number, taken)
    bench.expect("taken", [7, 64], "The proxy takes source and bytes out of the slot.")


def _room(bench: Bench) -> None:
    slots = bench.array("slots", np.zeros(_SLOTS, np.uint64))
    numbers = bench.array("numbers", np.zeros(_SLOTS, np.uint64))
    taken, out = bench.array("taken", np.zeros(1, np.uint64)), bench.array("out", np.zeros(_COMMANDS, np.uint64))
    bench.launch(2, 1, slots, numbers, taken, out)
    bench.expect("out", 100 + np.arange(_COMMANDS), "The proxy takes command n out of slot n % 4.")
    # Once more after the proxy has taken eight and paused: the last four have room at the same time.
    filled, away = bench.array("filled", np.zeros(_SLOTS, np.uint64)), bench.array("away", np.full(1, 8, np.uint64))
    bench.launch(1, 1, filled, numbers, away, out)
    bench.expect("filled", 108 + np.arange(_SLOTS), "A ring of four slots has room for four commands.")


def _numbers(bench: Bench) -> None:
    head, slots = bench.array("head", np.zeros(1, np.uint64)), bench.array("slots", np.zeros(32, np.uint64))
    numbers, out = bench.array("numbers", np.zeros(32, np.uint64)), bench.array("out", np.zeros(32, np.uint64))
    bench.launch(3, 16, head, slots, numbers, out)
    got = np.sort(np.asarray(bench.rank.to_host(out)))
    lost = sorted(set(range(100, 132)) - set(got.tolist()))
    bench.require(not lost, f"the proxy never saw the commands of threads {[each - 100 for each in lost][:8]}")


def _batch(bench: Bench) -> None:
    for number, taken, most, wanted, why in (
        ([0, 0, 0, 0], 0, 4, 0, "nothing was pushed yet"),
        ([1, 2, 0, 0], 0, 4, 2, "commands 0 and 1 are there"),
        ([1, 0, 3, 4], 0, 4, 1, "command 1 is not there yet, so those behind it have to wait"),
        ([5, 2, 3, 4], 1, 4, 4, "commands 1, 2 and 3 are there, and 4 has come round into slot 0"),
        ([5, 2, 3, 4], 3, 4, 2, "commands 3 and 4 are there; slots 1 and 2 hold old ones"),
        ([5, 6, 7, 8], 4, 3, 3, "four are there, and a batch has room for three"),
    ):
        got = bench.call(list(number), taken, most)
        bench.require(
            got == wanted,
            f"number={number}, taken={taken}, most={most} gives {got}, and should give {wanted}: {why}",
        )


PUZZLES = (
    Puzzle(
        number="04.1",
        title="Fill the slot, and say so",
        task="""
Block 0 is the kernel, block 1 the proxy, which waits until `number` is 1. Put 7 (the source) into `slot[0]` and 64
(the bytes) into `slot[1]`, and tell the proxy. Three lines.
""",
        template="""
#include <ep/memory.cuh>

extern "C" __global__ void puzzle(uint64_t* slot, uint64_t* number, uint64_t* taken) {
    if (blockIdx.x == 0) {
        // YOUR LINES
    } else {
        while (ep::ld_acquire_sys_u64(number) != 1) {
        }
        taken[0] = slot[0];
        taken[1] = slot[1];
    }
}
""",
        main=_publish,
        hints=(
            "The mailbox of notebook 04: look at the two lines that follow its wait.",
            "The proxy may read the moment it sees the number. What must be there by then, and which kind of store "
            "makes sure that it is?",
            "Two plain stores into `slot`, and then `ep::st_release_sys_u64(number, ...);`",
        ),
        solution="""
slot[0] = 7;
slot[1] = 64;
ep::st_release_sys_u64(number, 1);
""",
        discussion="""
The release puts both stores before the number, and the proxy's acquire sees them with it. `sys`, because the reader
is a CPU. A plain store of the number may come first, on a GPU in earnest: stores to different addresses have no order.
""",
        ranks=1,
        forbids={
            r"_gpu_|__threadfence(_block)?\s*\(": "The reader is a CPU: scope gpu and __threadfence() end at this "
            "GPU's own threads."
        },
    ),
    Puzzle(
        number="04.2",
        title="Is there room?",
        task="""
Twelve commands through four slots. Command *n* goes into slot *n* % 4, and `*taken` says how many commands the proxy
has taken so far. Wait until command *n* may be filled in. One line.
""",
        template="""
#include <ep/wait.cuh>

extern "C" __global__ void puzzle(uint64_t* slots, uint64_t* numbers, uint64_t* taken,
                                  uint64_t* out) {
    for (uint64_t n = 0; n < 12; ++n) {
        if (blockIdx.x == 0) {
            // YOUR LINES
            slots[n % 4] = 100 + n;
            ep::st_release_sys_u64(numbers + n % 4, n + 1);
        } else {
            while (ep::ld_acquire_sys_u64(numbers + n % 4) != n + 1) {
            }
            out[n] = slots[n % 4];
            ep::st_release_sys_u64(taken, n + 1);
        }
    }
}
""",
        main=_room,
        hints=(
            "`wait_for_room` of notebook 04 waits for the same thing.",
            "Which command lies in the slot that *n* wants, and what is `taken` once that one has been taken? Counts "
            "are unsigned: what is 2 - 4?",
            "`while (ep::ld_acquire_sys_u64(taken) + 4 < ...) continue;`: an addition on the left needs no "
            "subtraction on the right.",
        ),
        solution="while (ep::ld_acquire_sys_u64(taken) + 4 < n + 1) continue;",
        discussion="""
The slot held command n - 4, so `taken >= n - 3` is needed. In unsigned numbers 2 - 3 is about 2 to the power 64, and
the kernel waits for ever; with the 4 on the other side nothing wraps around. The acquire matters as much as the
comparison: it puts the stores into the slot behind the proxy's loads out of it.
""",
        ranks=1,
        frees="taken",
        flows=(Flow("taken", "reads", "own", "No thread has looked at `taken`: wait for it."),),
    ),
    Puzzle(
        number="04.3",
        title="A number for each thread",
        task="""
Two blocks of 16 threads push one command each; block 2 is the proxy. The ring has 32 slots, so there is room. Give this
thread a number of its own from `*head`, put `command` into that slot, and publish it in `numbers` (the number plus 1).
Three lines.
""",
        template="""
#include <ep/memory.cuh>

extern "C" __global__ void puzzle(uint64_t* head, uint64_t* slots, uint64_t* numbers,
                                  uint64_t* out) {
    if (blockIdx.x < 2) {
        const uint64_t command = 100 + blockIdx.x * blockDim.x + threadIdx.x;
        // YOUR LINES
    } else if (threadIdx.x == 0) {
        for (uint64_t n = 0; n < 32; ++n) {
            while (ep::ld_acquire_sys_u64(numbers + n) != n + 1) {
            }
            out[n] = slots[n];
        }
    }
}
""",
        main=_numbers,
        hints=(
            "`push` of notebook 04, without its wait.",
            "No two threads may get the same number, in whatever order they run: one operation must read `*head` and "
            "add to it.",
            "`const uint64_t number = ep::atom_add_relaxed_gpu_u64(head, 1);`, then the slot, then its number by "
            "`ep::st_release_sys_u64`.",
        ),
        solution="""
const uint64_t number = ep::atom_add_relaxed_gpu_u64(head, 1);
slots[number] = command;
ep::st_release_sys_u64(numbers + number, number + 1);
""",
        discussion="""
The addition hands out numbers and orders nothing, so relaxed is enough, at the scope of the GPU: the proxy never looks
at `head`. What orders the command before the proxy's read is the release of its own slot. A thread that is slow holds
up those behind it, and loses nothing.
""",
        ranks=1,
        flows=(
            Flow("head", "writes", "own", "The number must come from `*head`: 32 threads take one each.", threads=16),
        ),
    ),
    Puzzle(
        number="04.4",
        title="How many may the proxy take?",
        task="""
The other side, in Python. `number[slot]` is what each slot says, `taken` how many commands were taken so far, and a
batch has room for `most`. Count up `n`: how many commands may be taken now, in their order? Two lines.
""",
        template='''
def puzzle(number, taken, most):
    """How many commands are there, from command number `taken` on?"""
    slots = len(number)
    n = 0
    # YOUR LINES
    return n
''',
        main=_batch,
        hints=(
            "`take_batches` of notebook 04 has the same loop, in C++.",
            "Command `taken + n` lies in slot `(taken + n) % slots`. What does that slot say when it is there? And "
            "when a command of the round before still lies in it?",
            "`while n < most and number[(taken + n) % slots] == ...:` and below it `n += 1`.",
        ),
        solution="""
while n < most and number[(taken + n) % slots] == taken + n + 1:
    n += 1
""",
        discussion="""
The proxy stops at the first slot that is not ready, even if those behind it are: commands are carried out in the order
of their numbers. Compare for equality: an old number in the slot means that its next command has not come, and a larger
one cannot be there, since the kernel waits for the credit.
""",
        ranks=0,
    ),
)
