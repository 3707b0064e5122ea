"""Answers to the puzzles that people really give, with words that the verdict on each must hold; by puzzle."""

WRONG: dict[str, dict[str, str]] = {
    "00.1": {
        "*box = 100 + peer;": "Nothing was written across",
        "*box = 100 + me;": "should hold",
        "*ep::peer_ptr(box, me) = 100 + peer;\n*ep::peer_ptr(box, me) = 100 + me;": "should hold",
        "*ep::peer_ptr(box, peer) = 100 + peer": "line 2 of your cell",
        "if (me == 0) {\n    *ep::peer_ptr(box, peer) = 100;\n    *box = 101;\n}": "One rank wrote both numbers",
        "ep::peer_ptr(box, peer) = 100 + me;": "line 2 of your cell: error: ",
    },
    "00.2": {
        "list[blockIdx.x * blockDim.x + threadIdx.x] = 10 * (blockIdx.x * blockDim.x + threadIdx.x) + peer;": (
            "Nothing was written across"
        ),
        "if (blockIdx.x + threadIdx.x == 0) {\n"
        "    for (int i = 0; i < 32; ++i) ep::peer_ptr(list, peer)[i] = 10 * i + me;\n}": "Each of the 32 threads",
        "const int i = threadIdx.x;\nep::peer_ptr(list, peer)[i] = 10 * i + me;": "race",
        "const int i = blockIdx.x * blockDim.x + threadIdx.x;\nlist[i] = 10 * i + me;": "should hold",
        "const int i = 2 * (blockIdx.x * blockDim.x + threadIdx.x);\nep::peer_ptr(list, peer)[i] = 10 * i + me;": (
            "past the end of the symmetric array of 128 bytes at list"
        ),
    },
    "00.3": {
        "ep::signal_add(flag, 1, me);\nheard[0] = 100 + peer;\nheard[1] = 200 + peer;\nreturn;": (
            "nothing came from the other rank"
        ),
        "ep::peer_ptr(box, peer)[0] = 100 + me;\nep::peer_ptr(box, peer)[1] = 200 + me;\n"
        "heard[0] = 100 + peer;\nheard[1] = 200 + peer;\nreturn;": "must be what is read",
        "ep::signal_add(flag, 1, peer);\nep::peer_ptr(box, peer)[0] = 100 + me;\n"
        "ep::peer_ptr(box, peer)[1] = 200 + me;": "line 3 of your cell",
        "ep::peer_ptr(box, peer)[0] = 100 + me;\nep::peer_ptr(box, peer)[1] = 200 + me;": "waits",
        "ep::peer_ptr(box, peer)[0] = 100 + me;\nep::signal_add(flag, 1, peer);\n"
        "ep::peer_ptr(box, peer)[1] = 200 + me;": "line 4 of your cell",
        "ep::peer_ptr(box, peer)[0] = 100 + me;\nep::peer_ptr(box, peer)[1] = 200 + me;\n"
        "ep::signal_add(flag, 1, me);": "No signal came from the other rank",
    },
    "00.4": {
        "if (ep::rank() + blockIdx.x + threadIdx.x == 0) ep::atom_add_relaxed_sys_u32(counter, 64);": "its own 1",
        "*ep::peer_ptr(counter, 0) += 1;": "race",
        "ep::atom_add_relaxed_sys_u32(counter, 1);": "should hold",
        "if (threadIdx.x == 0) ep::atom_add_relaxed_sys_u32(ep::peer_ptr(counter, 0), 32);": "should hold [64]",
    },
    "01.1": {
        "for (int i = 0; i < 4; ++i) heard[i] = 100 * peer + i;\nreturn;": "wait for it",
        "while (ep::ld_relaxed_sys_u64(flag) < 1) {\n}": "acquire",
        "while (*flag < 1) {\n}": "line 2 of your cell",
        "while (ep::ld_acquire_sys_u64(ep::peer_ptr(flag, peer)) < 1) {\n}": "looked at its own `flag`",
        "if (ep::ld_acquire_sys_u64(flag) < 1) return;": "should hold",
        "ep::wait_until_ge(flag, 1, {ep::kPhaseSignal, peer, -1});": "the loop yourself",
    },
    "01.2": {
        "if (lane == 0) {\n    for (int i = 0; i < 32; ++i) ep::peer_ptr(box, peer)[i] = 100 * me + i;\n"
        "    ep::signal_add(flag, 1, peer);\n}": "All 32 lanes",
        "ep::peer_ptr(box, peer)[lane] = 100 * me + lane;\nif (lane == 0) ep::signal_add(flag, 1, peer);": (
            "__syncwarp"
        ),
        "ep::peer_ptr(box, peer)[lane] = 100 * me + lane;\nep::signal_add(flag, 1, peer);": "should hold [1]",
        "box[lane] = 100 * me + lane;\n__syncwarp();\nif (lane == 0) ep::signal_add(flag, 1, peer);": "All 32 lanes",
        "if (lane == 0) ep::signal_add(flag, 1, peer);\n__syncwarp();\n"
        "ep::peer_ptr(box, peer)[lane] = 100 * me + lane;": "line 4 of your cell",
        "ep::peer_ptr(box, peer)[lane] = 100 * me + lane;\nif (lane == 0) ep::signal_add(flag, 1, peer);\n"
        "__syncwarp();": "barrier of line 4 of your cell before the signal",
    },
    "01.3": {
        "if (round >= 2) ep::wait_until_ge(credits, round - 1, {ep::kPhaseCredit, peer, -1});": "Return if the",
        "if (!ep::wait_until_ge(credits, round + 1 - 2, {ep::kPhaseCredit, peer, -1}))\n    return;": "are unsigned",
        "if (round >= 2 && !ep::wait_until_ge(credits, round - 2, {ep::kPhaseCredit, peer, -1}))\n    return;": (
            "line 2 of your cell waits for too little of `credits`"
        ),
        "if (round >= 2 && !ep::wait_until_ge(credits, round, {ep::kPhaseCredit, peer, -1})) return;": (
            "a credit that it does not need"
        ),
    },
    "01.4": {
        "ep::wait_until_ge(read, epoch, {ep::kPhaseCredit, peer, -1});": "Return if the wait fails",
        "if (!ep::wait_until_ge(read, epoch + 1, {ep::kPhaseCredit, peer, -1})) return;": "timeout",
        "if (!ep::wait_until_ge(flag, epoch, {ep::kPhaseCredit, peer, -1})) return;": "something else than `read`",
        "if (epoch > 1 && !ep::wait_until_ge(read, 1, {ep::kPhaseCredit, peer, -1})) return;": "credit",
    },
    "02.1": {
        "inside = 1000 <= address and address + nbytes <= 1100": "is registered",
        "inside = begin <= address < begin + size": "are not inside",
        "inside = begin <= address and address + nbytes < begin + size": "are inside",
        "inside = address < begin + size and begin < address + nbytes": "are not inside",
        "begin <= address": "has no value",
    },
    "02.2": {
        "data += receive(size)": "you have read 7",
        "while len(data) < size:\n    data += receive(size)": "you have read 21",
        "while len(data) < size:\n    data += receive(size - len(data))": "does your loop end",
    },
    "02.3": {
        "for (size_t i = 0; i < bytes / 8; ++i) ep::peer_ptr(const_cast<uint64_t*>(data), 1)[i] = 100 + i;\n"
        "ep::signal_add(bell, 1, 1);": "by its entry",
        "nixlAtomicAdd<LEVEL>(1, {remote, 1, 0});\nnixlPut<LEVEL>({local, 0, 0}, {remote, 0, 0}, bytes);": (
            "remedy: data before its signal"
        ),
        "nixlPut<LEVEL>({local, 0, 0}, {remote, 0, 0}, bytes + 8);\nnixlAtomicAdd<LEVEL>(1, {remote, 1, 0});": (
            "registered"
        ),
        "nixlPut<LEVEL>({local, 0, 0}, {remote, 0, 0}, bytes);": "waits",
    },
    "02.4": {
        "if (lane == 0) {\n    constexpr auto THREAD = nixl_gpu_level_t::THREAD;\n"
        "    nixlPut<THREAD>({local, 0, 0}, {remote, 0, 0}, bytes);\n"
        "    nixlAtomicAdd<THREAD>(1, {remote, 1, 0});\n}": "All 32 lanes",
        "nixlPut<LEVEL>({local, 0, 0}, {remote, 0, 0}, bytes);\n"
        "nixlAtomicAdd<nixl_gpu_level_t::THREAD>(1, {remote, 1, 0});": "should hold [1]",
        "if (lane == 0) nixlPut<LEVEL>({local, 0, 0}, {remote, 0, 0}, bytes);\n"
        "nixlAtomicAdd<LEVEL>(1, {remote, 1, 0});": "",
    },
    "03.1": {
        "got[lane] = 100 * (2 - ep::rank()) + lane;\nif (lane == 0) *arrived = 1;\nreturn;": "nothing came from",
        "nvshmemi_ibgda_put_nbi_warp(to, from, 256, peer, qp, lane, 0);\n"
        "if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, qp);": "signal overtakes data",
        "nvshmemi_ibgda_put_nbi_warp(to, from, 256, peer, qp, lane, 0);\n"
        "if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);\n__syncwarp();\n"
        "nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, qp);": "should hold [1]",
        "nvshmemi_ibgda_put_nbi_warp(to, from, 32, peer, qp, lane, 0);\n"
        "if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);\n"
        "if (lane == 0) nvshmemi_ibgda_amo_nonfetch_add(arrived, 1, peer, qp);": "should hold",
    },
    "03.2": {
        "__syncwarp();": "quiet",
        "if (lane == 0) nvshmemi_ibgda_quiet(peer, qp);": "staging",
        "__syncwarp();\nif (lane == 0) nvshmemi_ibgda_quiet(peer, qp);": "staging",
    },
    "03.3": {
        "ep::net_put_nbi(inbox, outbox, 256, peer);\nep::net_quiet(peer);\n"
        "for (int i = 0; i < 4; ++i) ep::net_atomic_add_u64_nbi(signals + i, 1, peer);": "No wait between",
        "for (int i = 0; i < 4; ++i)\n"
        "    ep::net_put_signal_nbi(inbox + 8 * i, outbox + 8 * i, 64, signals, 1, peer);": "waits",
        "for (int i = 0; i < 4; ++i) ep::net_put_nbi(inbox + 8 * i, outbox + 8 * i, 64, peer);\n"
        "for (int i = 0; i < 4; ++i) ep::net_atomic_add_u64_nbi(signals + i, 1, peer);": "signal overtakes data",
    },
    "03.4": {
        "if (i == 0) nvshmemi_ibgda_amo_nonfetch_add(counters + me, 2, target, qp);": "adds 1, twice",
        "nvshmemi_ibgda_amo_nonfetch_add(counters, 1, target, qp);": "one kind of writer",
        "nvshmemi_ibgda_amo_nonfetch_add(counters + blockIdx.x, 1, target, qp);": "one kind of writer",
        "nvshmemi_ibgda_amo_nonfetch_add(counters + me, 1, me, qp);": "8 were added in all",
    },
    "04.1": {
        "ep::st_release_sys_u64(number, 1);\nslot[0] = 7;\nslot[1] = 64;": "remedy: data before its signal",
        "slot[0] = 7;\nslot[1] = 64;\n*number = 1;": "race",
        "slot[0] = 7;\nslot[1] = 64;\nep::st_release_gpu_u64(number, 1);": "The reader is a CPU",
        "slot[0] = 7;\nslot[1] = 64;\n__threadfence();\nep::st_relaxed_sys_u64(number, 1);": "The reader is a CPU",
        "slot[0] = 7;\nslot[1] = 64;\nep::st_relaxed_sys_u64(number, 1);": "stored without release",
        "slot[0] = 7;\nslot[1] = 64;\nep::st_release_sys_u64(number, 0);": "waits in a polling loop",
    },
    "04.2": {
        "while (ep::ld_acquire_sys_u64(taken) < n - 4 + 1) continue;": "or wait for less",
        "while (ep::ld_relaxed_sys_u64(taken) + 4 < n + 1) continue;": "without acquire",
        "while (ep::ld_acquire_sys_u64(taken) + 4 < n) continue;": "cell waits for too little of `taken`",
        "while (ep::ld_acquire_sys_u64(taken) < n) continue;": "a signal, a credit or a barrier; or wait for less",
    },
    "04.3": {
        "const uint64_t number = command - 100;\nslots[number] = command;\n"
        "ep::st_release_sys_u64(numbers + number, number + 1);": "must come from `*head`",
        "const uint64_t number = (*head)++;\nslots[number] = command;\n"
        "ep::st_release_sys_u64(numbers + number, number + 1);": "race",
        "const uint64_t number = threadIdx.x;\nslots[number] = command;\n"
        "ep::st_release_sys_u64(numbers + number, number + 1);": "no thread has stored",
        "const uint64_t number = ep::atom_add_relaxed_gpu_u64(head, 1);\n"
        "ep::st_release_sys_u64(numbers + number, number + 1);\nslots[number] = command;": "data before its signal",
    },
    "04.4": {
        "n = min(most, sum(word > taken for word in number))": "those behind it have to wait",
        "while number[(taken + n) % slots] == taken + n + 1:\n    n += 1": "a batch has room for three",
        "while n < most and number[(taken + n) % slots]:\n    n += 1": "slots 1 and 2 hold old ones",
        "while n < most and number[taken + n] == taken + n + 1:\n    n += 1": "IndexError",
    },
    "05.1": {
        "for (int i = 0; i < 7 - rows; ++i) got[i] = 10 * (2 - ep::rank()) + i;\nreturn;": "nothing came from",
        "ep::net_put_nbi(inbox, outbox, rows * 8, peer);\nep::net_atomic_add_u64_nbi(arrived, rows, peer);": (
            "signal overtakes data"
        ),
        "ep::net_put_signal_nbi(inbox, outbox, rows, arrived, rows, peer, 0, ep::NetSignal::kSet);": "should hold",
        "ep::net_put_signal_nbi(inbox, outbox, rows * 8, arrived, 1, peer, 0, ep::NetSignal::kSet);": ("should hold"),
    },
    "05.2": {
        "for begin in range(0, rows, slot_rows):\n    chunks.append((begin, min(slot_rows, rows - begin)))": (
            "a stream of 0 rows is one chunk"
        ),
        "for begin in range(0, max(rows, 1), slot_rows):\n    chunks.append((begin, slot_rows))": "should give",
        "for n in range(rows // slot_rows):\n    chunks.append((n * slot_rows, slot_rows))": "should give",
    },
    "05.3": {
        "slots = budget // (ranks * (16 + slot_rows * row_bytes))": "stands in both areas",
        "slots = budget // (2 * ranks * slot_rows * row_bytes)": "should give",
        "slots = budget / (2 * ranks * (16 + slot_rows * row_bytes))": "should give",
    },
    "05.4": {
        "if (lane == 0) ep::net_atomic_add_u64_nbi(credits, 1, peer);": "missing __syncwarp between the read",
        "if (lane == 0) ep::net_atomic_add_u64_nbi(credits, 1, peer);\n__syncwarp();": "gives its credit too early",
        "__syncwarp();\nep::net_atomic_add_u64_nbi(credits, 1, peer);": "One credit for each chunk",
        "__syncwarp();": "waited too long",
    },
    "06.1": {
        "ep::peer_ptr(rows, to)[8 * ep::rank() + threadIdx.x] = mine;": "has to ask",
        "const uint32_t row = ep::atom_add_relaxed_sys_u32(next_row, 1);\nep::peer_ptr(rows, to)[row] = mine;": (
            "each of"
        ),
        "const uint32_t row = (*ep::peer_ptr(next_row, to))++;\nep::peer_ptr(rows, to)[row] = mine;": "race",
        "ep::peer_ptr(rows, to)[threadIdx.x] = mine;": "each of",
    },
    "06.2": {
        "first_row = np.cumsum(counts, axis=0)": "and should be",
        "first_row = np.cumsum(counts, axis=1) - counts": "and should be",
        "first_row = counts.sum(axis=0)": "should have",
    },
    "06.3": {
        "int below = 0;\nfor (int l = 0; l < lane; ++l) below += goes[l];\n"
        "place[lane] = goes[lane] ? below : -1;": "No loop",
        "const unsigned votes = __ballot_sync(ep::kFullWarp, goes[lane]);\n"
        "place[lane] = goes[lane] ? __popc(votes & ((2u << lane) - 1)) : -1;": "should hold",
        "const unsigned votes = __ballot_sync(ep::kFullWarp, goes[lane]);\n"
        "place[lane] = __popc(votes & ((1u << lane) - 1));": "the others have -1",
        "if (goes[lane]) place[lane] = __popc(__ballot_sync(__activemask(), 1) & ((1u << lane) - 1));": ("should hold"),
    },
    "06.4": {
        "if (lane == 0) {\n    for (int v = 0; v < vectors; ++v) ep::peer_ptr(row, peer)[v] = token[v];\n"
        "    ep::signal_add(flag, 1, peer);\n}": "All 32 lanes",
        "for (int v = 3 * lane; v < 3 * lane + 3 && v < vectors; ++v) ep::peer_ptr(row, peer)[v] = token[v];\n"
        "__syncwarp();\nif (lane == 0) ep::signal_add(flag, 1, peer);": "lane l begins with",
        "for (int v = lane; v < vectors; v += 32) ep::peer_ptr(row, peer)[v] = token[v];\n"
        "__syncwarp();\nep::signal_add(flag, 1, peer);": "gets one signal",
        "for (int i = lane; i < vectors; i += ep::kWarpSize) ep::peer_ptr(row, peer)[i] = token[i];\n"
        "if (lane == 0) ep::signal_add(flag, 1, peer);": "race",
        "for (int i = lane; i + 32 <= vectors; i += 32) ep::peer_ptr(row, peer)[i] = token[i];\n"
        "__syncwarp();\nif (lane == 0) ep::signal_add(flag, 1, peer);": "should hold",
        "for (int i = lane; i < vectors; i += ep::kWarpSize) row[i] = token[i];\n"
        "__syncwarp();\nif (lane == 0) ep::signal_add(flag, 1, peer);": "should hold",
    },
    "07.1": {
        "a, b, c = np.float32(1), np.float32(2), np.float32(3)": "the same",
        "a, b, c = 1e30, -1e30, 1.0": "should be np.float32",
        "a, b, c = np.float32(3e38), np.float32(3e38), np.float32(-3e38)": "no infinities",
    },
    "07.2": {
        "float sum = 0.0f;\nfor (int r = ranks - 1; r >= 0; --r)\n"
        "    sum = __fadd_rn(sum, __fmul_rn(weights[r], rows[32 * r + i]));\nout[i] = sum;": "is wrong in",
        "float sum = 0.0f;\nfor (int r = 0; r < ranks; ++r)\n"
        "    sum = fmaf(weights[r], rows[32 * r + i], sum);\nout[i] = sum;": "is wrong in",
        "float sum = 0.0f;\nfor (int r = 0; r < ranks; ++r)\n"
        "    sum = __fadd_rn(sum, rows[32 * r + i]);\nout[i] = sum;": "is wrong in",
    },
    "07.3": {
        "for (int k = 0; k < top_k; ++k)\n    if (ids[k] / experts_per_rank == r) sum += w[k];": "is wrong in",
        "for (int k = 0; k < top_k; ++k)\n    if (ids[k] == r) sum += w[k];": "is wrong in",
        "for (int k = 0; k < top_k; ++k)\n"
        "    if (ids[k] >= 0 && ids[k] / experts_per_rank == r) sum = w[k];": "is wrong in",
    },
    "07.4": {
        "if (lane == 0) ep::signal_set(arrived + group, 1, owner);": "race",
        "__syncwarp();\nif (lane == 0) ep::signal_set(arrived, 1, owner);": "(31 more of its block wait there for it)",
        "__syncwarp();\nif (lane == 0) ep::st_relaxed_sys_u64(ep::peer_ptr(arrived + group, owner), 1);": "race",
        "__syncwarp();\nif (lane == 0) ep::signal_add(arrived + group, 1, owner);": "set to 1",
        "if (lane == 0) ep::signal_set(arrived + group, 1, owner);\n__syncwarp();": "before the signal, not behind it",
    },
    "08.1": {
        "scale = x.max() / 448": "group of negative numbers",
        "scale = abs(x).max() / 448": "group of zeros",
        "scale = 448 / abs(x).max()": "group of random numbers",
        "largest = abs(x).max()\nscale = largest / 448 if largest > 0 else 1.0": "infinity",
    },
    "08.2": {
        "ep::TaggedWord* const theirs = ep::peer_ptr(box, peer);\ntheirs->data = value;\n"
        "ep::st_relaxed_sys_u64(&theirs->tag, round + 1);": "one store for both words",
        **{
            "ep::TaggedWord* const theirs = ep::peer_ptr(box, peer);\nep::st_relaxed_sys_u64(&theirs->data, value);\n"
            f"ep::st_{order}_sys_u64(&theirs->tag, round + 1);": "one store for both words"
            for order in ("relaxed", "release")
        },
        "ep::st_relaxed_sys_u64x2(&ep::peer_ptr(box, peer)->data, round + 1, value);": "waited",
        "ep::st_relaxed_sys_u64x2(&box->data, value, round + 1);": "waited",
    },
    "08.3": {
        "rows = sum(len(token) for token in topk_idx)": "rows;",
        "for token in topk_idx:\n    rows += len({expert // per_rank for expert in token})": "rows;",
        "for token in topk_idx:\n    rows += sum(expert // per_rank != me for expert in token)": "rows;",
    },
    "08.4": {
        "const int at = 0;\nif (!ep::wait_until_ge(flag, 2 * round, {ep::kPhaseSignal, peer, round})) return;": "",
        "const int at = 0;": "credit before reuse, or, as here, a second place, used in turn",
        "const int at = round / 2 % 2;": "should hold",
        "const int at = round;": "past the end",
    },
    "09.1": {
        "experts = np.argsort(logits)[:top_k]\nweights = np.exp(logits[experts])": "the largest are those of",
        "experts = np.argsort(-logits)[:top_k]\nweights = logits[experts]": "the weights are",
        "experts = np.argsort(-logits)[:top_k]\nweights = np.exp(logits)": "which sum to 1.000, and should be",
    },
    "09.2": {
        "if (i == 0) {\n    for (int k = 0; k < count; ++k)\n"
        "        if (topk_idx[k] >= 0) load[topk_idx[k]] += 1;\n}": "The work is shared",
        "if (topk_idx[i] >= 0) load[topk_idx[i]] += 1;": "race",
        "ep::red_add_relaxed_gpu_u32(load + topk_idx[i], 1);": "load",
        "if (topk_idx[i] > 0) ep::red_add_relaxed_gpu_u32(load + topk_idx[i], 1);": "Each choice counts once",
    },
    "09.3": {
        "ranks |= 1u << expert / 2;": "A rank that holds two",
        "if (expert >= 0) ranks |= 1u << expert;": "rows of rank 0 holds",
        "if (expert >= 0) ranks += 1u << expert / 2;": "rows of rank 0 holds",
    },
    "09.4": {
        "sum = 7500.5f;": "must be read there",
        "sum += weights[k] * made[expert % 4];": "the weighted sum of what its experts made",
        "sum += weights[k] * ep::peer_ptr(made, expert % 2)[expert / 2];": "the weighted sum",
        "sum += weights[k] * ep::peer_ptr(made, expert / 4)[expert];": "out",
    },
    "10.1": {
        "partner = rank + node * ranks_per_node": "should give",
        "partner = node * ranks_per_node": "should give",
        "partner = node * ranks_per_node + rank // ranks_per_node": "should give",
    },
    "10.2": {
        "rows = sum(len(set(ranks)) for ranks in topk_ranks)": "it should be",
        "rows = sum(len(set(ranks // ranks_per_node)) for ranks in topk_ranks)": "it should be",
        "rows = int((topk_ranks // ranks_per_node != mine).sum())": "it should be",
    },
    "10.3": {
        "for (int i = 0; i < 2; ++i)\n    ep::peer_ptr(box, first + i)[8 * me + thread] = row[thread];": (
            "is wrong in"
        ),
        "for (int i = 0; i < 2; ++i)\n"
        "    if (wanted >> i & 1) ep::peer_ptr(box, i)[8 * me + thread] = row[thread];": "is wrong in",
        "for (int i = 0; i < 2; ++i)\n"
        "    if (wanted >> i & 1) ep::peer_ptr(box, first + i)[thread] = row[thread];": "is wrong in",
    },
    "10.4": {
        "for (int i = 0; i < 4; ++i) sum += ep::peer_ptr(y, (ep::rank() + i) % 4)[lane];\ntotal[lane] = sum;": (
            "is wrong in"
        ),
        "for (int rank = 3; rank >= 0; --rank) sum += ep::peer_ptr(y, rank)[lane];\ntotal[lane] = sum;": (
            "is wrong in"
        ),
        "for (int rank = 0; rank < 4; ++rank) sum += y[lane];\ntotal[lane] = sum;": "is wrong in",
        "for (int rank = 0; rank < 4; ++rank) sum += ep::peer_ptr(y, rank)[lane];": "Nothing was stored into `total`",
    },
}
