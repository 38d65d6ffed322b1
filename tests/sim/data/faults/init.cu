// Faults of the check "init". A comment FAULT marks the line of each.
#include <cuda_pipeline.h>

#include "fault.h"

KERNEL(last_slot) {
    __shared__ float s[64];
    int t = threadIdx.x;
    if (t < PICK(64, 63))
        s[t] = x[t];
    __syncthreads();
    float v = s[63 - t];  // FAULT last_slot
    y[t] = v;
}

KERNEL(halo) {
    __shared__ float s[66];
    int t = threadIdx.x;
    s[t + 1] = x[t];
    if (t == 0) {
        s[0] = 0.0f;
        WITHOUT(s[65] = 0.0f;)
    }
    __syncthreads();
    float left = s[t], right = s[t + 2];  // FAULT halo
    y[t] = left + right;
}

KERNEL(histogram) {
    __shared__ float bins[32];
    int t = threadIdx.x;
    WITHOUT(if (t < 32) bins[t] = 0.0f;)
    __syncthreads();
    atomicAdd(bins + (t & 31), x[t]);  // FAULT histogram
    __syncthreads();
    if (t < 32)
        y[t] = bins[t];
}

KERNEL(padding) {
    __shared__ float s[8][9];
    int t = threadIdx.x;
    s[t / 8][t % 8] = x[t];
    __syncthreads();
    float v = s[t % 8][t / 8 + PICK(0, 1)];  // FAULT padding
    y[t] = v;
}

KERNEL(copies_of_too_few) {
    __shared__ float s[64];
    int t = threadIdx.x;
    if (t < PICK(64, 48))
        __pipeline_memcpy_async(s + t, x + t, 4);
    __pipeline_commit();
    __pipeline_wait_prior(0);
    __syncthreads();
    float v = s[63 - t];  // FAULT copies_of_too_few
    y[t] = v;
}

KERNEL(register_of_some_threads) {
    int t = threadIdx.x;
    float v;
    asm volatile("{\n\t.reg .pred p;\n\tsetp.lt.s32 p, %1, %2;\n\t@p mov.f32 %0, 0f3F800000;\n\t}"
                 : "=f"(v)
                 : "r"(t), "n"(PICK(64, 60)));
    y[t] = v;  // FAULT register_of_some_threads
}

KERNEL(second_stage) {
    __shared__ float s[2][64];
    int t = threadIdx.x;
    s[0][t] = x[t];
    __syncthreads();
    float sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k < n; k++) {
        WITHOUT(if (k + 1 < n) s[(k + 1) & 1][t] = x[64 * (k + 1) + t];)
        sum += s[k & 1][63 - t];  // FAULT second_stage
        __syncthreads();
    }
    y[t] = sum;
}
