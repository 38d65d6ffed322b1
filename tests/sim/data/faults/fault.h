// Each kernel has one seeded fault. With -DREPAIRED it is as it should be.
#ifdef REPAIRED
#define PICK(right, wrong) (right)
#define WITHOUT(statement) statement
#else
#define PICK(right, wrong) (wrong)
#define WITHOUT(statement)
#endif
#define KERNEL(name) extern "C" __global__ void name(const float *__restrict__ x, float *y, int n)
