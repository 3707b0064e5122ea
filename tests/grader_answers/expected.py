"""What the grader must make of every answer file: which tasks lose their points, and what the learner must be told."""

from __future__ import annotations

# exercise -> answer -> (tasks that fail, what the first failing task's message must say; "a|b": one of these)
WRONG: dict[str, dict[str, tuple[set[int], str]]] = {
    "01_write_signal": {
        "wrong_signal_first": ({1}, "had not arrived: which comes first"),
        "wrong_no_syncwarp": ({3, 4, 5}, "is there a __syncwarp()"),  # 5: the solution's pipe stands on task 3
        "wrong_sets_the_signal": ({1}, "instead of growing by it"),
        "wrong_size": ({3, 5}, "bytes of the message are wrong"),
        "wrong_peer": ({1}, "bytes of the message are wrong"),
        "wrong_waits_for_equal": ({2}, "PeerTimeout"),
        "wrong_endless_loop": ({2}, "KernelTimeout"),
        "wrong_null_write": ({1}, "a null pointer"),
        "wrong_no_credit": ({5}, "received bytes are wrong|rounds ahead"),
        "wrong_early_credit": ({5}, "credit before reuse|received bytes are wrong"),
        "wrong_forges_results": ({1, 2, 3, 4, 5}, "something else than the runner wrote"),
        "wrong_exits": ({1, 2, 3, 4, 5}, "ended the whole process with exit code 0"),
        "wrong_fork_bomb": ({1}, "more than 32 processes"),
        "wrong_memory_hog": ({3, 5}, "MiB of memory"),
        "wrong_relaxed_signal": ({1, 4}, "stored without release"),
        "wrong_volatile_wait": ({2}, "loaded without acquire"),
        "wrong_gpu_scope": ({3, 5}, "a scope that includes the other rank"),
        "wrong_fence_before_barrier": ({3, 5}, "comes after the barrier"),
        "wrong_lane_waits": ({5}, "missing __syncwarp"),
        "wrong_blinds_the_checker": ({1, 2, 3, 4, 5}, "the checker was switched off"),
        "wrong_syntax": ({1, 2, 3, 4, 5}, "KernelCompileError"),
    },
    "03_shim": {
        "wrong_pointer_for_all": ({1}, "cannot be reached"),
        "wrong_own_copy": ({1}, "is not the address of that rank's own copy"),
        "wrong_no_syncwarp": ({2}, "all lanes meet (__syncwarp)"),
        "wrong_nic_for_all": ({2}, "served by the warp itself|all lanes meet"),
        "wrong_last_lane_forgotten": ({2}, "bytes of the message are wrong"),
        "wrong_all_lanes_post": ({3}, "One lane posts, once"),
        "wrong_lanes_run_ahead": ({3}, "the others do not go on before it has"),
        "wrong_queue_pair": ({3, 4}, "signal overtakes data"),
        "wrong_queue_pair_too_large": ({3}, "posts on queue pair"),
        "wrong_waits": ({3}, "Waiting is the work of quiet"),
        "wrong_relaxed_add": ({4}, "release at system scope"),
        "wrong_local_copy_ignored": ({4}, "a counter grew by 0 where it should grow"),
        "wrong_64_bits": ({4}, "counters have 32 bits"),
    },
    "03_batches": {
        "wrong_reuses_staging": ({1}, "source reused"),
        "wrong_lanes_stage_early": ({1}, "the lanes meet twice"),
        "wrong_posts_half_staged": ({1}, "the lanes meet twice"),
        "wrong_quiet_first": ({2}, "signal overtakes data"),
        "wrong_quiet_each": ({2, 4}, "one for the batch keeps the network busy"),
        "wrong_other_queue_pair": ({2}, "InfiniBand's quiet waits for one queue pair"),
        "wrong_counts_one": ({2}, "the receiver waits for your counter to grow"),
        "wrong_count_together": ({3}, "One kind of writer"),
        "wrong_count_by_target": ({3}, "grew by 0 where it should grow by 6"),
        "wrong_quiet_at_the_end": ({4}, "signal overtakes data"),
        "wrong_last_chunk": ({4}, "where it should grow by"),
        "wrong_lane_31_quiets": ({4}, "nothing but a quiet keeps the counter behind"),
    },
}

# Exercises whose tasks do not stand on each other: wrong answers to different tasks are graded as one submission.
INDEPENDENT = {"03_batches", "03_shim"}
