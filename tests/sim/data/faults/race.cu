// Faults of the check "race". A comment FAULT marks the line of each.
#include <cuda_pipeline.h>

#include "fault.h"

KERNEL(read_without_a_barrier) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    WITHOUT(__syncthreads();)
    float v = s[63 - t];  // FAULT read_without_a_barrier
    y[t] = v;
}

KERNEL(slot_reused_in_a_loop) {
    __shared__ float s[64];
    int t = threadIdx.x;
    float sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        s[t] = x[64 * k + t];  // FAULT slot_reused_in_a_loop
        __syncthreads();
        sum += s[63 - t];
        WITHOUT(__syncthreads();)
    }
    y[t] = sum;
}

KERNEL(one_slot_for_two) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[PICK(t, t / 2)] = x[t];  // FAULT one_slot_for_two
    __syncthreads();
    y[t] = s[t / 2];
}

KERNEL(no_warp_barrier) {
    __shared__ float s[32];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncwarp();
    float v = s[t ^ 16];
    WITHOUT(__syncwarp();)
    s[t] = v;  // FAULT no_warp_barrier
    __syncwarp();
    y[t] = s[t ^ 1];
}

KERNEL(copy_not_waited_for) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = 0.0f;
    __syncthreads();
    __pipeline_memcpy_async(s + t, x + t, 4);
    __pipeline_commit();
    WITHOUT(__pipeline_wait_prior(0);)
    __syncthreads();
    float v = s[63 - t];  // FAULT copy_not_waited_for
    y[t] = v;
}

KERNEL(too_many_groups_pending) {
    __shared__ float s[2][64];
    int t = threadIdx.x;
    s[0][t] = s[1][t] = 0.0f;
    __syncthreads();
    __pipeline_memcpy_async(s[0] + t, x + t, 4);
    __pipeline_commit();
    __pipeline_memcpy_async(s[1] + t, x + 64 + t, 4);
    __pipeline_commit();
    __pipeline_wait_prior(PICK(0, 1));
    __syncthreads();
    float first = s[0][63 - t];
    float second = s[1][63 - t];  // FAULT too_many_groups_pending
    y[t] = first + second;
}

KERNEL(two_blocks_write) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[PICK(i, threadIdx.x)] = x[i];  // FAULT two_blocks_write
}

KERNEL(global_exchange) {
    int t = threadIdx.x;
    y[t] = x[t];
    WITHOUT(__syncthreads();)
    float v = y[63 - t];  // FAULT global_exchange
    y[64 + t] = v;
}

KERNEL(all_threads_write_the_sum) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (PICK(t == 0, true))
        y[blockIdx.x] = s[0] + s[1];  // FAULT all_threads_write_the_sum
}
