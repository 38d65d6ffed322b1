// Faults of the check "sync". A comment FAULT marks the line of each.
#include "fault.h"

KERNEL(divergent_barrier) {
    int t = threadIdx.x;
    if (t < PICK(64, 40)) {
        y[t] = x[t];
        __syncthreads();  // FAULT divergent_barrier
        y[64 + t] = y[t ^ 1];
    }
}

KERNEL(return_before_a_barrier) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    if (PICK(false, t >= n))
        return;
    __syncthreads();  // FAULT return_before_a_barrier
    y[t] = s[t ^ 1];
}

KERNEL(mask_of_threads_that_returned) {
    int t = threadIdx.x;
    float v = x[t];
    if (t >= PICK(32, 16))
        return;
    v += __shfl_xor_sync(0xFFFFFFFF, v, 1);  // FAULT mask_of_threads_that_returned
    y[t] = v;
}

KERNEL(lane_that_takes_no_part) {
    int t = threadIdx.x;
    float v = x[t];
    if (t < 16)
        v = __shfl_sync(0xFFFF, v, PICK(15, 20));  // FAULT lane_that_takes_no_part
    y[t] = v;
}

KERNEL(mask_without_the_thread) {
    int t = threadIdx.x;
    float v = x[t];
    v += __shfl_down_sync(PICK(0xFFFFFFFF, 0xFFFF), v, 1);  // FAULT mask_without_the_thread
    y[t] = v;
}

KERNEL(barrier_for_too_many) {
    int t = threadIdx.x;
    y[t] = x[t];
    asm volatile("bar.sync 1, %0;" ::"n"(PICK(64, 96)) : "memory");  // FAULT barrier_for_too_many
    y[64 + t] = y[63 - t];
}

KERNEL(barrier_for_too_few) {
    int t = threadIdx.x;
    y[t] = x[t];
    asm volatile("bar.sync 1, %0;" ::"n"(PICK(96, 64)) : "memory");  // FAULT barrier_for_too_few
}

KERNEL(two_barriers_for_one) {
    int t = threadIdx.x;
    asm volatile("bar.sync %0, 64;" ::"r"(t < 32 ? 1 : PICK(1, 2)) : "memory");  // FAULT two_barriers_for_one
    y[t] = x[t];
}

KERNEL(arrival_twice) {
    int t = threadIdx.x;
    if (t < 32) {
        asm volatile("bar.arrive 1, 64;" ::: "memory");
        WITHOUT(asm volatile("bar.sync 2, 64;" ::: "memory");)
        asm volatile("bar.arrive 1, 64;" ::: "memory");  // FAULT arrival_twice
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        WITHOUT(asm volatile("bar.sync 2, 64;" ::: "memory");)
        WITHOUT(asm volatile("bar.sync 1, 64;" ::: "memory");)
    }
    y[t] = x[t];
}
