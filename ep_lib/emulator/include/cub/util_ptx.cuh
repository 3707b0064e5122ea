// CUB's own header with its shuffles as calls. The rest of its inline PTX (bit fields, matches) stays: it compiles as
// long as it is unused.
#pragma once
#include <cub/util_type.cuh>
#include <ep_emulator/cub.h>

#define volatile(...) \
    ("");             \
    word = ep_emulator::shuffle_word(#__VA_ARGS__, word, src_offset, flags, member_mask)
#define ThreadExit() ThreadExit(unsigned word = 0, int src_offset = 0, int flags = 0, unsigned member_mask = 0)
#include_next <cub/util_ptx.cuh>
#undef ThreadExit
#undef volatile
