// The host target: kernels in C on a thread pool, GEMMs by oneDNN, everything in order on the calling thread.
#include "runtime/host.h"
#include <string.h>
#include <sys/mman.h>

typedef struct Mapping {
    struct Mapping *next;
    void *at;
    size_t bytes;
} Mapping;

struct DriverState {
    Pool *pool;
    Gemms *gemms;
    KernelSet *kernels;
    char *cache_dir;
    char threads_from[64];
    Mapping *mappings;
    size_t available, mapped; // bytes free when the driver was opened; bytes that arenas take
    unsigned char *scratch;   // KERNEL_SCRATCH bytes a worker
};

static void host_close(DriverState *d) {
    if (!d)
        return;
    kernels_close(d->kernels);
    gemms_close(d->gemms);
    pool_close(d->pool);
    for (Mapping *m = d->mappings, *next; m; m = next) {
        next = m->next;
        munmap(m->at, m->bytes);
        mem_free(m);
    }
    mem_free(d->scratch);
    mem_free(d->cache_dir);
    mem_free(d);
}

static Status host_open_parts(DriverState *d, const DriverOptions *o) {
    int threads = o->threads;
    if (threads)
        snprintf(d->threads_from, sizeof d->threads_from, "--threads");
    else
        threads = system_threads(d->threads_from);
    if (o->cache_dir) {
        size_t n = strlen(o->cache_dir) + 1;
        if (!(d->cache_dir = mem_alloc(n)))
            return status_memory("driver", n);
        memcpy(d->cache_dir, o->cache_dir, n);
    }
    size_t total;
    system_memory(&total, &d->available);
    TRY(pool_open(threads, &d->pool));
    size_t bytes = (size_t)threads * KERNEL_SCRATCH;
    if (!(d->scratch = mem_aligned(4096, bytes)))
        return status_memory("kernel scratch", bytes);
    return gemms_open(d->pool, &d->gemms);
}

static Status host_open(const DriverOptions *o, DriverState **out) {
    *out = NULL;
    DriverState *d = mem_alloc(sizeof *d);
    if (!d)
        return status_memory("driver", sizeof *d);
    Status s = host_open_parts(d, o);
    if (s.code) {
        host_close(d);
        return s;
    }
    *out = d;
    return STATUS_OK;
}

static Status host_query(DriverState *d, DeviceInfo *info) {
    char cpu[96];
    *info = (DeviceInfo){.threads = pool_size(d->pool)};
    system_cpu_name(cpu, sizeof cpu);
    snprintf(info->name, sizeof info->name, "%.80s, %d threads, %s", cpu, info->threads,
             system_vector_name());
    snprintf(info->threads_from, sizeof info->threads_from, "%s", d->threads_from);
    system_memory(&info->memory_total, &info->memory_free);
    return STATUS_OK;
}

static Status host_alloc(DriverState *d, size_t bytes, const char *what, DevPtr *out) {
    // Mapped memory is only taken when it is touched, so the system itself would not refuse in time.
    size_t left = d->available > d->mapped ? d->available - d->mapped : 0;
    size_t size = (MAX_OF(bytes, 1) + 4095) & ~(size_t)4095;
    *out = 0;
    if (size < bytes || (d->available && size > left))
        return status_make(EXIT_WORK, "out of memory: %s needs %.1f MB, free are %.1f MB", what,
                           (double)bytes / 1e6, (double)left / 1e6);
    Mapping *m = mem_alloc(sizeof *m);
    void *at = m && !fault_hit(FAULT_DRIVER)
                   ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                   : MAP_FAILED;
    if (at == MAP_FAILED) {
        mem_free(m);
        return status_memory(what, bytes);
    }
    (void)madvise(at, size, MADV_HUGEPAGE);
    *m = (Mapping){.next = d->mappings, .at = at, .bytes = size};
    d->mappings = m;
    d->mapped += size;
    *out = (DevPtr)at;
    return STATUS_OK;
}

static void host_free(DriverState *d, DevPtr at) {
    for (Mapping **p = &d->mappings; *p; p = &(*p)->next)
        if ((DevPtr)(*p)->at == at) {
            Mapping *m = *p;
            *p = m->next;
            d->mapped -= m->bytes;
            munmap(m->at, m->bytes);
            mem_free(m);
            return;
        }
    CHECK(!at, "host_free of an address that host_alloc did not give");
}

static Status host_compile(DriverState *d, const Plan *plan, CompileStats *stats) {
    DriverOptions o = {.cache_dir = d->cache_dir};
    kernels_close(d->kernels);
    d->kernels = NULL;
    return kernels_open(plan, &o, d->pool, &d->kernels, stats);
}

static Status host_prepare(DriverState *d, const Gemm *g) {
    return gemms_prepare(d->gemms, g);
}

typedef struct LaunchRun {
    const Launch *launch;
    KernelFn *fn;
    unsigned char *scratch;
} LaunchRun;

static void launch_task(void *ctx, int64_t strip, int worker) {
    const LaunchRun *r = ctx;
    KernelArgs args = r->launch->args;
    int64_t items = r->launch->items, n = r->launch->n_strips;
    args.scratch = r->scratch + (size_t)worker * KERNEL_SCRATCH;
    r->fn(&args, items / n * strip + items % n * strip / n,
          items / n * (strip + 1) + items % n * (strip + 1) / n, strip);
}

static Status host_launch(DriverState *d, const Launch *l) {
    if (fault_hit(FAULT_DRIVER))
        return status_make(EXIT_WORK, "host: kernel launch failed");
    LaunchRun r = {.launch = l, .fn = kernels_get(d->kernels, l->kernel), .scratch = d->scratch};
    pool_run(d->pool, l->n_strips, launch_task, &r);
    return STATUS_OK;
}

static Status host_gemm(DriverState *d, const Gemm *g) {
    if (fault_hit(FAULT_DRIVER))
        return status_make(EXIT_WORK, "host: GEMM failed");
    return gemms_run(d->gemms, g);
}

// Copies and fills of some size go over the pool: one core does not reach the memory's bandwidth.
enum { PIECE = 1 << 20 };
typedef struct BytesRun {
    unsigned char *dst;
    const unsigned char *src; // NULL: zero bytes
    size_t bytes;
} BytesRun;

static void bytes_task(void *ctx, int64_t i, int worker) {
    const BytesRun *r = ctx;
    (void)worker;
    size_t at = (size_t)i * PIECE, n = MIN_OF(r->bytes - at, (size_t)PIECE);
    if (r->src)
        memcpy(r->dst + at, r->src + at, n);
    else
        memset(r->dst + at, 0, n);
}

static Status host_copy(DriverState *d, DevPtr dst, DevPtr src, size_t bytes, CopyKind kind) {
    (void)kind;
    if (fault_hit(FAULT_DRIVER))
        return status_make(EXIT_WORK, "host: copy of %zu bytes failed", bytes);
    BytesRun r = {.dst = (unsigned char *)dst, .src = (const unsigned char *)src, .bytes = bytes};
    pool_run(d->pool, (int64_t)((bytes + PIECE - 1) / PIECE), bytes_task, &r);
    return STATUS_OK;
}

static Status host_fill(DriverState *d, DevPtr dst, size_t bytes) {
    if (fault_hit(FAULT_DRIVER))
        return status_make(EXIT_WORK, "host: fill of %zu bytes failed", bytes);
    BytesRun r = {.dst = (unsigned char *)dst, .bytes = bytes};
    pool_run(d->pool, (int64_t)((bytes + PIECE - 1) / PIECE), bytes_task, &r);
    return STATUS_OK;
}

static Status host_sync(DriverState *d) {
    (void)d;
    return STATUS_OK;
}

// Best of a few GEMMs of 1024^3. 0 when the CPU has no such GEMM.
static double measure_gemm(DriverState *d, Dtype dtype, DevPtr at) {
    enum { N = 1024, TIMES = 5 };
    Gemm g = {.m = N, .n = N, .k = N, .lda = N, .ldb = N, .ldc = N, .dtype_ab = dtype, .dtype_c = dtype};
    g.a = at;
    g.b = at + (size_t)N * N * 4;
    g.c = at + (size_t)N * N * 8;
    double best = 0;
    for (int i = 0; i < TIMES; i++) {
        double start = now_ms();
        if (gemms_run(d->gemms, &g).code)
            return 0;
        double rate = 2.0 * N * N * N / (1e-3 * (now_ms() - start));
        best = MAX_OF(best, rate);
    }
    return best;
}

static Status host_measure(DriverState *d, DeviceInfo *info) {
    enum { TIMES = 4 };
    size_t half = (size_t)128 << 20;
    DevPtr at;
    TRY(host_query(d, info));
    TRY(host_alloc(d, 2 * half, "the bandwidth probe", &at));
    Status s = host_fill(d, at, 2 * half);
    for (int i = 0; !s.code && i < TIMES; i++) {
        double start = now_ms();
        s = host_copy(d, at + half, at, half, COPY_ON_DEVICE);
        double rate = 2.0 * (double)half / (1e-3 * (now_ms() - start));
        info->copy_bytes_per_s = MAX_OF(info->copy_bytes_per_s, rate);
    }
    if (!s.code) {
        info->peak_flops[DT_F32] = measure_gemm(d, DT_F32, at);
        info->peak_flops[DT_BF16] = measure_gemm(d, DT_BF16, at);
    }
    host_free(d, at);
    return s;
}

const Driver driver_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .query = host_query,
    .measure = host_measure,
    .alloc = host_alloc,
    .free = host_free,
    .compile = host_compile,
    .prepare = host_prepare,
    .launch = host_launch,
    .gemm = host_gemm,
    .copy = host_copy,
    .fill = host_fill,
    .sync = host_sync,
};

static const Driver *const drivers[] = {&driver_host};

const Driver *driver_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(drivers); i++)
        if (!strcmp(drivers[i]->name, name))
            return drivers[i];
    return NULL;
}
