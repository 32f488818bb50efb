// A target: one struct of functions. exec.c is the same for all of them.
#ifndef DEPTHBENCH_RUNTIME_DRIVER_H
#define DEPTHBENCH_RUNTIME_DRIVER_H
#include "ir/base.h"
#include "ir/plan.h"

typedef struct DriverState DriverState;
typedef uintptr_t DevPtr;

typedef struct DriverOptions {
    int threads;           // 0: the cores that the process may use
    const char *cache_dir; // NULL: no cache
    int verbose;
} DriverOptions;

typedef struct DeviceInfo {
    char name[128]; // "AMD EPYC, 2 threads, AVX-512"
    int threads;
    char threads_from[64]; // what decided the number: "--threads", "affinity mask", "cgroup quota", "cores"
    size_t memory_total, memory_free;
    double peak_flops[N_DTYPES]; // measured or 0
    double copy_bytes_per_s;     // measured or 0
} DeviceInfo;

// The C interface of a kernel (the same struct is in the prelude of the kernel texts).
typedef struct KernelArg {
    void *at;
    int64_t stride[PLAN_MAX_ROWS]; // elements
} KernelArg;
typedef struct KernelArgs {
    int64_t size[PLAN_MAX_ROWS + 3];
    const KernelArg *arg;
    const float *scalar;
    int64_t acc;   // add to the last argument
    void *scratch; // per worker, KERNEL_SCRATCH bytes, 64-byte aligned
} KernelArgs;
typedef void KernelFn(const KernelArgs *a, int64_t item0, int64_t item1, int64_t strip);
enum { KERNEL_SCRATCH = 16 << 20 }; // reserved; only what kernels touch takes memory

typedef struct CompileStats {
    int compiled, cached;
    double ms;
} CompileStats;

typedef struct Launch {
    int32_t kernel; // as in the plan given to compile
    int64_t items;
    int32_t n_strips;
    KernelArgs args;
} Launch;

typedef struct Gemm {
    int64_t m, n, k, lda, ldb, ldc;
    bool trans_a, trans_b, add; // add: C += op(A) op(B)
    Dtype dtype_ab, dtype_c;
    DevPtr a, b, c;
} Gemm;

typedef enum CopyKind { COPY_TO_DEVICE, COPY_TO_HOST, COPY_ON_DEVICE } CopyKind;

typedef struct Driver {
    const char *name;
    Status (*open)(const DriverOptions *, DriverState **);
    void (*close)(DriverState *);
    Status (*query)(DriverState *, DeviceInfo *);   // fast; measured fields stay 0
    Status (*measure)(DriverState *, DeviceInfo *); // query, and the measured fields; takes part of a second
    Status (*alloc)(DriverState *, size_t bytes, const char *what, DevPtr *); // arenas only; zeroed
    void (*free)(DriverState *, DevPtr);
    Status (*compile)(DriverState *, const Plan *,
                      CompileStats *);              // all kernels of the plan, from cache or text
    Status (*prepare)(DriverState *, const Gemm *); // creates what a GEMM of this shape needs
    Status (*launch)(DriverState *, const Launch *);
    Status (*gemm)(DriverState *, const Gemm *);
    Status (*copy)(DriverState *, DevPtr dst, DevPtr src, size_t bytes, CopyKind);
    Status (*fill)(DriverState *, DevPtr dst, size_t bytes); // with zero bytes
    Status (*sync)(DriverState *);
} Driver;

extern const Driver driver_host;
const Driver *driver_find(const char *name); // NULL when unknown
#endif
