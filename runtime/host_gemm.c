// GEMM by oneDNN: C[m,n] (+)= op(A)[m,k] op(B)[k,n], f32 or bf16 operands, f32 sums.
//
// C is cut into blocks by its shape alone; a block is one single-threaded oneDNN primitive that a worker of
// the pool runs. So there is one thread pool for rows and GEMMs, and the bits of C do not depend on the
// number of threads (oneDNN's own split of k among threads would). Primitives are made once a block shape, in
// gemms_prepare, and found again by shape.
#define _GNU_SOURCE
#include "runtime/host.h"
#include <dlfcn.h>
#include <dnnl.h>
#include <stdlib.h>
#include <string.h>

// A block below BLOCK_FLOPS is not worth handing out; m and n of blocks are multiples of these, except the
// last.
enum { BLOCK_M = 32, BLOCK_N = 64, MAX_BLOCKS = 64 };
static const double block_flops = 48e6, small_block_flops = 4e6;

typedef struct BlockKey { // what a primitive depends on
    int64_t m, n, k, lda, ldb, ldc;
    int32_t trans_a, trans_b, add, dtype_ab, dtype_c;
} BlockKey;

typedef struct Block {
    BlockKey key;
    dnnl_primitive_t primitive;
    dnnl_primitive_desc_t desc;
    size_t scratch_bytes;
    struct BlockMemory { // of one worker: descriptions with exchangeable addresses
        dnnl_memory_t a, b, c, scratch;
    } * memory;
} Block;

struct Gemms {
    Pool *pool;
    dnnl_engine_t engine;
    int n_workers, n_blocks, cap_blocks;
    struct GemmWorker {
        dnnl_stream_t stream;
        void *scratch;
        size_t scratch_bytes;
        bool single; // this thread has told OpenMP to use one thread
    } * worker;
    Block **blocks;
};

// How a GEMM is cut: block (i, j) has rows [i*bm, ..) and columns [j*bn, ..).
typedef struct Cut {
    int64_t bm, bn, nm, nn;
} Cut;

typedef struct GemmRun {
    Gemms *g;
    const Gemm *gemm;
    Cut cut;
    Block *block[2][2]; // [last row of blocks][last column of blocks]
    bool failed;
} GemmRun;

static int64_t round_up(int64_t x, int64_t to) {
    return (x + to - 1) / to * to;
}

// Blocks as square as their number allows: a block reads bm*k of A and bn*k of B.
static Cut gemm_cut(const Gemm *g) {
    double flops = 2.0 * (double)g->m * (double)g->n * (double)g->k;
    double want = flops / block_flops;
    if (want < 4)
        want = MIN_OF(flops / small_block_flops, 4.0);
    if (want > MAX_BLOCKS)
        want = MAX_BLOCKS;
    Cut best = {.bm = g->m, .bn = g->n, .nm = 1, .nn = 1};
    double best_cost = -1;
    for (int64_t nm = 1; nm <= MAX_BLOCKS; nm++) {
        Cut c = {.bm = MIN_OF(round_up((g->m + nm - 1) / nm, BLOCK_M), g->m)};
        c.nm = (g->m + c.bm - 1) / c.bm;
        int64_t nn = (int64_t)(want / (double)c.nm + 0.999);
        nn = MAX_OF(nn, 1);
        c.bn = MIN_OF(round_up((g->n + nn - 1) / nn, BLOCK_N), g->n);
        c.nn = (g->n + c.bn - 1) / c.bn;
        if (c.nm != nm || (double)(c.nm * c.nn) > 1.5 * want + 1)
            continue;
        // Packing traffic, and idle time when the last round of blocks is not full (seen from eight threads).
        double pack = (double)(c.nm * g->n + c.nn * g->m) * (double)g->k;
        double cost = pack * (1 + 1.0 / (double)(c.nm * c.nn));
        if (best_cost < 0 || cost < best_cost) {
            best_cost = cost;
            best = c;
        }
    }
    return best;
}

static Status dnnl_failed(const char *what, const BlockKey *k, dnnl_status_t rc) {
    return status_make(rc == dnnl_unimplemented ? EXIT_TARGET : EXIT_WORK,
                       "host: oneDNN cannot %s a %s GEMM of %lld x %lld x %lld: %s", what,
                       dtype_name((Dtype)k->dtype_ab), (long long)k->m, (long long)k->n, (long long)k->k,
                       rc == dnnl_unimplemented
                           ? "this CPU lacks the instructions (bf16 needs AVX-512); use --dtype f32"
                       : rc == dnnl_out_of_memory ? "out of memory"
                                                  : "internal error");
}

static dnnl_data_type_t dnnl_type(int32_t dtype) {
    return dtype == DT_BF16 ? dnnl_bf16 : dnnl_f32;
}

// A matrix of rows x cols stored with leading size ld, possibly transposed.
static dnnl_status_t matrix_desc(dnnl_memory_desc_t *d, int64_t rows, int64_t cols, int64_t ld, bool trans,
                                 int32_t dtype) {
    dnnl_dims_t dims = {rows, cols}, strides = {trans ? 1 : ld, trans ? ld : 1};
    return dnnl_memory_desc_init_by_strides(d, 2, dims, dnnl_type(dtype), strides);
}

static dnnl_status_t block_make(Gemms *g, Block *b) {
    const BlockKey *k = &b->key;
    dnnl_memory_desc_t a, w, c;
    dnnl_matmul_desc_t op;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t post = NULL;
    dnnl_status_t rc = matrix_desc(&a, k->m, k->k, k->lda, k->trans_a, k->dtype_ab);
    rc = rc ? rc : matrix_desc(&w, k->k, k->n, k->ldb, k->trans_b, k->dtype_ab);
    rc = rc ? rc : matrix_desc(&c, k->m, k->n, k->ldc, false, k->dtype_c);
    rc = rc ? rc : dnnl_matmul_desc_init(&op, &a, &w, NULL, &c);
    rc = rc ? rc : dnnl_primitive_attr_create(&attr);
    rc = rc ? rc : dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    rc = rc ? rc : dnnl_post_ops_create(&post);
    if (!rc && k->add)
        rc = dnnl_post_ops_append_sum(post, 1.0f);
    rc = rc ? rc : dnnl_primitive_attr_set_post_ops(attr, post);
    rc = rc ? rc : dnnl_primitive_desc_create(&b->desc, &op, attr, g->engine, NULL);
    rc = rc ? rc : dnnl_primitive_create(&b->primitive, b->desc);
    if (!rc)
        b->scratch_bytes =
            dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(b->desc, dnnl_query_scratchpad_md, 0));
    for (int w1 = 0; !rc && w1 < g->n_workers; w1++) {
        struct BlockMemory *m = &b->memory[w1];
        rc = dnnl_memory_create(&m->a, &a, g->engine, NULL);
        rc = rc ? rc : dnnl_memory_create(&m->b, &w, g->engine, NULL);
        rc = rc ? rc : dnnl_memory_create(&m->c, &c, g->engine, NULL);
        rc = rc ? rc
                : dnnl_memory_create(&m->scratch,
                                     dnnl_primitive_desc_query_md(b->desc, dnnl_query_scratchpad_md, 0),
                                     g->engine, NULL);
    }
    if (post)
        dnnl_post_ops_destroy(post);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return rc;
}

static void block_free(Gemms *g, Block *b) {
    for (int w = 0; b->memory && w < g->n_workers; w++) {
        dnnl_memory_t *m[] = {&b->memory[w].a, &b->memory[w].b, &b->memory[w].c, &b->memory[w].scratch};
        for (size_t i = 0; i < COUNT_OF(m); i++)
            if (*m[i])
                dnnl_memory_destroy(*m[i]);
    }
    if (b->primitive)
        dnnl_primitive_destroy(b->primitive);
    if (b->desc)
        dnnl_primitive_desc_destroy(b->desc);
    mem_free(b->memory);
    mem_free(b);
}

static Block *block_find(const Gemms *g, const BlockKey *key) {
    for (int i = 0; i < g->n_blocks; i++)
        if (!memcmp(&g->blocks[i]->key, key, sizeof *key))
            return g->blocks[i];
    return NULL;
}

static BlockKey block_key(const Gemm *gemm, const Cut *c, bool last_m, bool last_n) {
    BlockKey k;
    memset(&k, 0, sizeof k); // compared and searched by bytes
    k.m = last_m ? gemm->m - (c->nm - 1) * c->bm : c->bm;
    k.n = last_n ? gemm->n - (c->nn - 1) * c->bn : c->bn;
    k.k = gemm->k;
    k.lda = gemm->lda;
    k.ldb = gemm->ldb;
    k.ldc = gemm->ldc;
    k.trans_a = gemm->trans_a;
    k.trans_b = gemm->trans_b;
    k.add = gemm->add;
    k.dtype_ab = (int32_t)gemm->dtype_ab;
    k.dtype_c = (int32_t)gemm->dtype_c;
    return k;
}

static Status block_add(Gemms *g, const BlockKey *key) {
    if (block_find(g, key))
        return STATUS_OK;
    if (g->n_blocks == g->cap_blocks) {
        int cap = g->cap_blocks ? 2 * g->cap_blocks : 32;
        Block **more = mem_realloc(g->blocks, (size_t)cap * sizeof *more);
        if (!more)
            return status_memory("GEMM table", (size_t)cap * sizeof *more);
        g->blocks = more;
        g->cap_blocks = cap;
    }
    Block *b = mem_alloc(sizeof *b);
    if (!b)
        return status_memory("GEMM", sizeof *b);
    b->key = *key;
    b->memory = mem_alloc((size_t)g->n_workers * sizeof *b->memory);
    if (!b->memory) {
        block_free(g, b);
        return status_memory("GEMM", (size_t)g->n_workers * sizeof *b->memory);
    }
    dnnl_status_t rc = fault_hit(FAULT_DRIVER) ? dnnl_out_of_memory : block_make(g, b);
    if (rc) {
        block_free(g, b);
        return dnnl_failed("prepare", key, rc);
    }
    g->blocks[g->n_blocks++] = b;
    return STATUS_OK;
}

// oneDNN takes its number of threads from OpenMP, both when a primitive is made and when it runs; the setting
// belongs to the calling thread. The library brings its OpenMP along, so the function is looked up, not
// linked.
static void single_thread(struct GemmWorker *w) {
    if (w->single)
        return;
    void *at = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    void (*set)(int) = NULL;
    memcpy(&set, &at, sizeof at);
    if (set)
        set(1);
    w->single = true;
}

static void scratch_task(void *ctx, int64_t i, int worker) {
    (void)i;
    single_thread(&((Gemms *)ctx)->worker[worker]);
}

static Status scratch_grow(Gemms *g, size_t bytes) {
    for (int w = 0; w < g->n_workers; w++) {
        struct GemmWorker *x = &g->worker[w];
        if (x->scratch_bytes >= bytes)
            continue;
        mem_free(x->scratch);
        x->scratch_bytes = 0;
        if (!(x->scratch = mem_aligned(4096, bytes)))
            return status_memory("GEMM scratch", bytes);
        x->scratch_bytes = bytes;
    }
    return STATUS_OK;
}

Status gemms_prepare(Gemms *g, const Gemm *gemm) {
    CHECK(gemm->m > 0 && gemm->n > 0 && gemm->k > 0, "empty GEMM");
    scratch_task(g, 0, 0);
    Cut cut = gemm_cut(gemm);
    for (int i = 0; i < 4; i++) {
        BlockKey key = block_key(gemm, &cut, i & 1, i & 2);
        TRY(block_add(g, &key));
        TRY(scratch_grow(g, block_find(g, &key)->scratch_bytes));
    }
    return STATUS_OK;
}

static void gemm_task(void *ctx, int64_t index, int worker) {
    GemmRun *r = ctx;
    const Gemm *g = r->gemm;
    struct GemmWorker *w = &r->g->worker[worker];
    // Blocks of one row of C follow each other, so that a worker keeps its part of A in cache.
    int64_t i = index / r->cut.nn, j = index % r->cut.nn, row = i * r->cut.bm, col = j * r->cut.bn;
    Block *b = r->block[i == r->cut.nm - 1][j == r->cut.nn - 1];
    struct BlockMemory *m = &b->memory[worker];
    size_t ab = dtype_bytes(g->dtype_ab), c = dtype_bytes(g->dtype_c);
    single_thread(w);
    dnnl_memory_set_data_handle(m->a, (void *)(g->a + ab * (size_t)(g->trans_a ? row : row * g->lda)));
    dnnl_memory_set_data_handle(m->b, (void *)(g->b + ab * (size_t)(g->trans_b ? col * g->ldb : col)));
    dnnl_memory_set_data_handle(m->c, (void *)(g->c + c * (size_t)(row * g->ldc + col)));
    dnnl_memory_set_data_handle(m->scratch, w->scratch);
    dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, m->a},
                              {DNNL_ARG_WEIGHTS, m->b},
                              {DNNL_ARG_DST, m->c},
                              {DNNL_ARG_SCRATCHPAD, m->scratch}};
    if (dnnl_primitive_execute(b->primitive, w->stream, COUNT_OF(args), args) != dnnl_success)
        __atomic_store_n(&r->failed, true, __ATOMIC_RELAXED);
}

Status gemms_run(Gemms *g, const Gemm *gemm) {
    GemmRun r = {.g = g, .gemm = gemm, .cut = gemm_cut(gemm)};
    for (int i = 0; i < 4; i++) {
        BlockKey key = block_key(gemm, &r.cut, i & 1, i & 2);
        Block *b = block_find(g, &key);
        if (!b) { // not announced: make it now
            TRY(gemms_prepare(g, gemm));
            b = block_find(g, &key);
        }
        r.block[i & 1][i >> 1] = b;
    }
    pool_run(g->pool, r.cut.nm * r.cut.nn, gemm_task, &r);
    if (r.failed) {
        BlockKey key = block_key(gemm, &r.cut, false, false);
        return dnnl_failed("run", &key, dnnl_runtime_error);
    }
    return STATUS_OK;
}

Status gemms_open(Pool *pool, Gemms **out) {
    *out = NULL;
    Gemms *g = mem_alloc(sizeof *g);
    if (!g)
        return status_memory("GEMM", sizeof *g);
    g->pool = pool;
    g->n_workers = pool_size(pool);
    g->worker = mem_alloc((size_t)g->n_workers * sizeof *g->worker);
    dnnl_status_t rc = g->worker ? dnnl_engine_create(&g->engine, dnnl_cpu, 0) : dnnl_out_of_memory;
    for (int w = 0; !rc && w < g->n_workers; w++)
        rc = dnnl_stream_create(&g->worker[w].stream, g->engine, dnnl_stream_default_flags);
    if (rc) {
        gemms_close(g);
        return status_make(EXIT_WORK, "host: oneDNN does not start (%s)",
                           rc == dnnl_out_of_memory ? "out of memory" : "internal error");
    }
    *out = g;
    return STATUS_OK;
}

void gemms_close(Gemms *g) {
    if (!g)
        return;
    for (int i = 0; i < g->n_blocks; i++)
        block_free(g, g->blocks[i]);
    for (int w = 0; g->worker && w < g->n_workers; w++) {
        if (g->worker[w].stream)
            dnnl_stream_destroy(g->worker[w].stream);
        mem_free(g->worker[w].scratch);
    }
    if (g->engine)
        dnnl_engine_destroy(g->engine);
    mem_free(g->worker);
    mem_free(g->blocks);
    mem_free(g);
}
