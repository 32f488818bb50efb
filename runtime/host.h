// Parts of the host target: machine facts, thread pool, compiler, GEMM. driver_host (host.c) joins them.
#ifndef DEPTHBENCH_RUNTIME_HOST_H
#define DEPTHBENCH_RUNTIME_HOST_H
#include "runtime/driver.h"

// ---- Machine (host_system.c)
// Threads that the process may use: the smallest of affinity mask, cgroup quota (rounded up) and cores. from
// says which.
int system_threads(char from[64]);
// CPUs of a cgroup quota, rounded up, found through a file like /proc/self/cgroup and a tree like
// /sys/fs/cgroup; 0: none.
int system_quota(const char *self_cgroup, const char *root);
void system_memory(size_t *total, size_t *available); // bytes; a cgroup limit counts
void system_cpu_name(char *out, size_t bytes);
// Everything of the CPU that -march=native depends on, as text for a cache key.
void system_cpu_flags(char *out, size_t bytes);
const char *system_vector_name(void); // "AVX-512", "AVX2", "SSE2", "NEON", "scalar"

// ---- Thread pool (host_threads.c). Worker 0 is the calling thread.
typedef struct Pool Pool;
typedef void PoolTask(void *ctx, int64_t index, int worker);
Status pool_open(int threads, Pool **out) MUST_USE;
void pool_close(Pool *p);
int pool_size(const Pool *p);
// Runs task for each index in [0, n) exactly once and returns when all are done. Which worker runs an index
// may differ from run to run, so a task's result must depend on its index only.
void pool_run(Pool *p, int64_t n, PoolTask *task, void *ctx);

// ---- Compiler (host_compile.c)
typedef struct Compiler {
    char command[1024]; // words separated by blanks; empty: none found
    char version[256];  // first line of --version
    char key[33];       // hash of everything --version says and of flags in $CC
    char looked[384];   // "$CC (not set), cc, gcc, clang"
} Compiler;
void compiler_find(Compiler *out);
typedef struct KernelSet KernelSet;
// Loads every kernel of the plan from the cache (cache_dir NULL: none) or compiles it; fn[i] for kernel i.
Status kernels_open(const Plan *plan, const DriverOptions *options, Pool *pool, KernelSet **out,
                    CompileStats *stats) MUST_USE;
void kernels_close(KernelSet *k);
KernelFn *kernels_get(const KernelSet *k, int32_t i);
// The C function of a kernel's name: characters that C does not allow become '_'.
void kernel_symbol(const char *name, char *out, size_t bytes);

// ---- GEMM by oneDNN (host_gemm.c). Cut into blocks that depend on the shape alone, each run by one thread.
typedef struct Gemms Gemms;
Status gemms_open(Pool *pool, Gemms **out) MUST_USE;
void gemms_close(Gemms *g);
Status gemms_prepare(Gemms *g, const Gemm *shape) MUST_USE; // a, b, c of the shape are not used
Status gemms_run(Gemms *g, const Gemm *gemm) MUST_USE;
#endif
