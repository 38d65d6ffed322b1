// Faults of the check "memory". A comment FAULT marks the line of each.
#include "fault.h"

KERNEL(index_past_the_end) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i + PICK(0, 1)];  // FAULT index_past_the_end
    y[i] = v;
}

KERNEL(index_before_the_start) {
    int t = threadIdx.x;
    float v = x[t - PICK(0, 1)];  // FAULT index_before_the_start
    y[t] = v;
}

KERNEL(no_guard_of_the_tail) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (PICK(i < n, true))
        y[i] = 1.0f;  // FAULT no_guard_of_the_tail
}

KERNEL(shared_array_overrun) {
    __shared__ float s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    float v = s[PICK(t ^ 1, t + 1)];  // FAULT shared_array_overrun
    y[t] = v;
}

KERNEL(misaligned_vector) {
    int t = threadIdx.x;
    float4 v = *reinterpret_cast<const float4 *>(x + 4 * t + PICK(0, 2));  // FAULT misaligned_vector
    y[t] = v.x + v.w;
}

KERNEL(write_to_an_input) {
    int t = threadIdx.x;
    float *to = PICK(y, const_cast<float *>(x));
    to[t] = 2.0f;  // FAULT write_to_an_input
}

KERNEL(atomic_past_the_end) {
    int t = threadIdx.x;
    atomicAdd(y + t + PICK(0, 1), 1.0f);  // FAULT atomic_past_the_end
}
