/* The invariants, each a test of its own name in one of the files beside. */
#ifndef ZF_TESTS_ZENFLOW_LIST_H
#define ZF_TESTS_ZENFLOW_LIST_H

#define INVARIANTS(X)                                                                              \
    X(I1)                                                                                          \
    X(I2)                                                                                          \
    X(I3)                                                                                          \
    X(I7)                                                                                          \
    X(auto_interval)                                                                               \
    X(locality)                                                                                    \
    X(I5)                                                                                          \
    X(I5_unwatched)                                                                                \
    X(I5_slow_windows)                                                                             \
    X(M1)                                                                                          \
    X(zero_offload)                                                                                \
    X(M5)                                                                                          \
    X(I4)                                                                                          \
    X(scarce_slots)                                                                                \
    X(I6)                                                                                          \
    X(I6_used_engine)                                                                              \
    X(hostile_checkpoints)                                                                         \
    X(I6_other_ranks)                                                                              \
    X(M2)                                                                                          \
    X(M3)                                                                                          \
    X(device_bytes)                                                                                \
    X(divided_bytes)                                                                               \
    X(host_bytes)                                                                                  \
    X(M4)                                                                                          \
    X(ten_times)                                                                                   \
    X(gaps_stay_zero)                                                                              \
    X(evaluation)                                                                                  \
    X(I8)                                                                                          \
    X(host_state)                                                                                  \
    X(summed_bytes)                                                                                \
    X(stream_priorities)                                                                           \
    X(steps_copy_pinned_memory)                                                                    \
    X(auto_by_hand)                                                                                \
    X(auto_on_ranks)                                                                               \
    X(auto_keeps_up)                                                                               \
    X(keep_up)                                                                                     \
    X(keep_up_sees_behind_the_lag)                                                                 \
    X(keep_up_is_interrupted)                                                                      \
    X(keep_up_counts_all_work)                                                                     \
    X(keep_up_without_important)                                                                   \
    X(keep_up_is_kept)                                                                             \
    X(I9)                                                                                          \
    X(bf16_parameters)                                                                             \
    X(fp32_masters)                                                                                \
    X(non_finite)                                                                                  \
    X(refusals)                                                                                    \
    X(launches)                                                                                    \
    X(seeds)

#define DECLARE_INVARIANT(name) void name(void **state);
INVARIANTS(DECLARE_INVARIANT)
#undef DECLARE_INVARIANT

#endif
