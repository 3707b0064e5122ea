"""What `make test` leaves to `make extended`: repetitions of what another test has run, at greater length.

More seeds and shapes of the same question, whole programs under one more launcher, files that are broken in one more
place, the rest of the wrong answers that the grader is tried with. CI runs both where its time allows, `make nightly`
always. What is left out here runs hardly a line or branch of ep_lib that `make test` does not run (112 of 40,157 lines,
nearly all of them hidden tests' words about wrong answers), and is no wrong variant of a kernel: the checker must
find every one of those, always. Tests that need a GPU are in neither's count.

``{module::test: how many of its cases `make test` runs}``, the first ones in the order of their parameters.
"""

from __future__ import annotations

from collections import Counter

import pytest

KEPT = {
    # more seeds, shapes, fabrics, GPUs
    "test_after_a_death::test_what_a_failed_operation_hands_out_is_nan": 5,
    "test_autograd::test_gradcheck_of_the_whole_world": 1,
    "test_bounce_buffer::test_all_rows_arrive_on_every_fabric": 14,
    "test_bounce_buffer::test_in_turn_everybody_waits_for_everybody": 0,
    "test_bounce_buffer::test_late_credits_are_waited_for_at_both_ends": 0,
    "test_bounce_buffer::test_nothing_is_found_in_the_ladder": 14,
    "test_checker::test_nothing_is_said_of_dispatch_and_combine": 1,
    "test_device_headers_put::test_all_alignments_of_small_and_odd_sizes": 4,
    "test_direct::test_clean_under_the_checker": 2,
    "test_direct::test_every_shape_of_launch": 1,
    "test_direct_checked::test_nothing_is_said_of_what_the_variants_break": 4,
    "test_direct_features::test_arrays_made_before_the_counts_are_clean_under_the_checker": 0,
    "test_dispatch_combine::test_many_cases_in_one_world": 3,
    "test_dispatch_combine::test_many_seeds_against_the_oracle": 1,
    "test_dispatch_combine::test_repeated_operations_with_slow_ranks": 3,
    "test_dispatch_combine_api::test_batches_equal_the_oracle_by_every_way": 1,
    "test_exhaustive::test_it_goes_on_from_files_of_any_length": 0,
    "test_expert_parallel::test_training_spread_equals_training_here": 2,
    "test_flat::test_many_runs_leave_memory_files_and_threads_flat": 0,
    "test_hierarchical::test_fewer_bytes_cross_and_it_is_quicker_on_the_virtual_clock": 0,
    "test_hierarchical::test_many_seeds_against_the_oracle": 1,
    "test_hierarchical::test_seeds_against_the_oracle": 0,
    "test_hierarchical::test_with_a_transport_that_stores_inside_a_node": 0,
    "test_hierarchical_checked::test_nothing_is_said": 3,
    "test_hierarchical_checked::test_nothing_is_said_of_what_the_variants_break": 0,
    "test_jit_nvrtc::test_kernels_compile_for_old_and_new_gpus": 2,
    "test_ladder::test_a_rung_of_06_and_07_has_no_races": 4,
    "test_low_latency::test_against_the_oracle": 3,
    "test_low_latency_checked::test_nothing_is_said": 3,
    "test_low_latency_checked::test_nothing_is_said_of_what_the_variants_break": 1,
    "test_mask_ranks::test_a_buffer_outlives_a_rank": 1,
    "test_mask_ranks::test_ranks_leave_and_return": 2,
    "test_mask_ranks::test_ranks_leave_and_return_without_a_race": 0,
    "test_packed_combine::test_bit_for_bit": 2,
    "test_packed_combine::test_clean_under_the_checker": 1,
    "test_pcie::test_each_pair_of_ranks_by_its_own_way": 0,
    "test_pcie::test_many_seeds_against_the_oracle": 1,
    "test_pcie::test_repeated_operations_and_handles": 2,
    "test_pcie::test_seeds_against_the_oracle": 1,
    "test_pcie::test_up_to_32_ranks": 1,
    "test_pcie_checked::test_nothing_is_said": 3,
    "test_pcie_model::test_the_model_is_near_the_published_table": 0,
    "test_right_kernels::test_nothing_is_said": 101,
    "test_row_formats::test_casts_are_clean_under_the_checker": 3,
    "test_row_formats::test_every_form_by_direct_writes": 2,
    "test_row_formats::test_rows_are_cast_on_their_way": 1,
    "test_weak_memory::test_the_oracle_of_races_agrees": 1,
    "test_weak_memory::test_threads_may_see_signals_of_two_nics_in_different_orders": 0,
    # one more broken file, limit, unequal rank
    "test_cache::test_a_damaged_emulator_heals": 1,
    "test_cache::test_every_file_of_a_kernel_heals": 14,
    "test_checker_cli::test_a_kernel_that_never_ends_is_named": 0,
    "test_checker_cli::test_a_script_that_never_ends_leaves_nothing_behind": 1,
    "test_dispatch_combine_api::test_ranks_with_unequal_configs_end_at_once": 1,
    "test_fault_injection::test_a_rank_that_stops_inside_dispatch_and_combine": 1,
    "test_fault_injection::test_a_rank_that_stops_is_named_by_the_next_and_the_others_go_on": 1,
    "test_killed_processes::test_a_signal_to_any_process_of_a_run": 0,
    "test_nth_failure::test_every_allocation_of_the_emulator_that_fails_is_told": 0,
    "test_rank_faults::test_every_rank_gets_a_sentence": 1,
    "test_rank_faults::test_who_remains_is_told_and_nothing_stays": 0,
    "test_watched::test_what_the_words_miss_is_seen_in_the_library_or_in_the_run": 2,
    # whole programs, by one more launcher or from one more side
    "test_bench_remote::test_two_processes": 0,
    "test_bootstrap::test_mpiexec_names_a_late_rank": 0,
    "test_bootstrap::test_mpiexec_names_a_rank_that_left": 0,
    "test_bootstrap::test_torchrun_leaves_the_process_group_alone_and_names_leavers": 0,
    "test_browser::test_a_notebook_runs_to_its_end": 0,
    "test_class_grading::test_ctrl_c_keeps_all_rows_and_leaves_no_process": 0,
    "test_deep_ep::test_vllm_sglang_and_megatron_call_it_on_gloo_groups": 0,
    "test_demo::test_json_is_one_object_and_nothing_else": 0,
    "test_demo::test_run_demo_tells_and_reports": 0,
    "test_dispatch_combine_api::test_a_killed_rank_is_named_by_the_others": 0,
    "test_dispatch_combine_api::test_the_program_under_mpiexec": 0,
    "test_executors::test_processes_of_mpiexec_give_the_same_points": 0,
    "test_gpu_compare::test_the_script_runs_on_the_emulator": 0,
    "test_gpu_docs::test_pictures_of_the_kept_run": 0,
    "test_gpu_table::test_gpu_sh_goes_on_and_keeps_its_time": 0,
    "test_gpu_table::test_the_same_script_runs_on_the_emulator": 0,
    "test_grader_answers::test_the_exercise_as_shipped_gets_nothing_and_names_every_task": 8,
    "test_grader_cli::test_full_marks_end_with_0_and_several_submissions_with_the_worst": 0,
    "test_mine::test_counts_go_out_by_a_learners_write_and_signal": 0,
    "test_mine::test_two_nodes_run_on_own_ring_slots_and_sums": 0,
    "test_mutants::test_hidden_tests_kill_a_mutant_and_let_another_live": 0,
    "test_packaging::test_lab_in_an_empty_folder_is_a_whole_workshop": 0,
    "test_packaging::test_the_sdist_runs_its_tests": 0,
    "test_packaging::test_the_wheel_carries_the_workshop_and_the_library": 0,
    "test_rank_processes::test_a_buffer_closes_at_once_after_a_rank_was_lost": 0,
    "test_rank_processes::test_a_buffer_through_native_proxies_equals_the_oracle": 0,
    "test_rank_processes::test_a_buffer_under_mpiexec_equals_the_oracle": 0,
    "test_rank_processes::test_a_buffer_under_torchrun_equals_the_oracle": 0,
    "test_rank_processes::test_a_paused_rank_is_named_by_who_waits_for_it": 0,
    "test_rank_processes::test_a_proxy_that_has_ended_is_named": 0,
    "test_rank_processes::test_a_stopped_rank_under_mpiexec_is_named_and_all_end": 0,
    "test_rank_processes::test_a_wait_without_end_names_its_line": 0,
    "test_rank_processes::test_an_error_under_mpiexec_is_told_to_who_waits_in_kernels": 0,
    "test_rank_processes::test_atomics_of_processes_lose_nothing": 1,
    "test_rank_processes::test_ranks_under_mpiexec_go_on_without_a_killed_one": 0,
    "test_rank_processes::test_what_was_posted_arrives_though_its_rank_leaves": 1,
    "test_release::test_the_course_works_in_a_release": 0,
    "test_several_hosts::test_a_cut_cable_is_told": 0,
    "test_several_hosts::test_dispatch_and_combine_in_hierarchical_mode": 0,
    "test_several_hosts::test_two_hosts_with_two_ranks_each": 0,
    "test_site::test_every_tour_shows_what_it_says": 0,
    "test_time_travel::test_the_page_in_a_browser": 0,
    "test_torch_compile::test_one_graph_equals_eager_with_inductor": 0,
    "test_workshop_replay::test_of_all_schedules_one_that_is_wrong_is_shown": 0,
    "test_workshop_replay::test_the_shown_run_stays_behind_the_walls": 0,
}


def mark(items: list[pytest.Item]) -> None:
    """Give what is left to `make extended` the marker of that name."""
    seen: Counter[str] = Counter()
    for item in items:
        test = f"{item.path.stem}::{item.name.split('[', 1)[0]}"
        if test in KEPT and item.get_closest_marker("gpu") is None:
            seen[test] += 1
            if seen[test] > KEPT[test]:
                item.add_marker("extended")
