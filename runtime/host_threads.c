// A fork-join pool with little latency: workers spin briefly for the next task, then sleep.
//
// Each worker begins with its own share of the indices, the same share each time, so that consecutive steps
// find their rows in its cache; when it is done it takes from the others. Spinning is off when there are more
// threads than cores. Invariant: between pool_run calls every worker waits for `epoch` to change, and task
// fields belong to the caller.
#include "runtime/host.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

typedef struct Share {
    _Alignas(64) atomic_llong next;
    long long end;
} Share;

struct Pool {
    int n, spins, started;
    Share *share;
    struct Worker {
        Pool *pool;
        int index;
        pthread_t thread;
    } * workers;
    PoolTask *task;
    void *ctx;
    bool stop;
    _Alignas(64) atomic_uint epoch;
    _Alignas(64) atomic_int pending; // workers that have not yet finished this epoch
    atomic_int sleepers, caller_sleeps;
    pthread_mutex_t lock;
    pthread_cond_t wake, done;
};

static inline void relax(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static void pool_work(Pool *p, int worker) {
    for (int v = 0; v < p->n; v++) {
        Share *s = &p->share[(worker + v) % p->n];
        for (;;) {
            long long i = atomic_load_explicit(&s->next, memory_order_relaxed);
            if (i >= s->end)
                break;
            i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
            if (i >= s->end)
                break;
            p->task(p->ctx, i, worker);
        }
    }
}

static void worker_wait(Pool *p, unsigned seen) {
    for (int i = 0; i < p->spins; i++) {
        if (atomic_load_explicit(&p->epoch, memory_order_acquire) != seen)
            return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->epoch) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void *worker_main(void *arg) {
    struct Worker *w = arg;
    Pool *p = w->pool;
    for (unsigned seen = 0;; seen++) {
        worker_wait(p, seen);
        if (p->stop)
            return NULL;
        pool_work(p, w->index);
        if (atomic_fetch_sub(&p->pending, 1) == 1 && atomic_load(&p->caller_sleeps)) {
            pthread_mutex_lock(&p->lock);
            pthread_cond_signal(&p->done);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

static void pool_wake(Pool *p) {
    atomic_fetch_add(&p->epoch, 1);
    if (atomic_load(&p->sleepers)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
}

static void pool_join(Pool *p) {
    for (int i = 0; i < p->spins; i++) {
        if (atomic_load_explicit(&p->pending, memory_order_acquire) == 0)
            return;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->caller_sleeps, 1);
    while (atomic_load(&p->pending))
        pthread_cond_wait(&p->done, &p->lock);
    atomic_store(&p->caller_sleeps, 0);
    pthread_mutex_unlock(&p->lock);
}

void pool_run(Pool *p, int64_t n, PoolTask *task, void *ctx) {
    if (p->n == 1 || n <= 1) {
        for (int64_t i = 0; i < n; i++)
            task(ctx, i, 0);
        return;
    }
    for (int w = 0; w < p->n; w++) {
        atomic_store_explicit(&p->share[w].next, n * w / p->n, memory_order_relaxed);
        p->share[w].end = n * (w + 1) / p->n;
    }
    p->task = task;
    p->ctx = ctx;
    atomic_store_explicit(&p->pending, p->n - 1, memory_order_relaxed);
    pool_wake(p);
    pool_work(p, 0);
    pool_join(p);
}

int pool_size(const Pool *p) {
    return p->n;
}

void pool_close(Pool *p) {
    if (!p)
        return;
    p->stop = true;
    pool_wake(p);
    for (int w = 1; w <= p->started; w++)
        pthread_join(p->workers[w].thread, NULL);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    mem_free(p->share);
    mem_free(p->workers);
    mem_free(p);
}

static bool pool_start(Pool *p) {
    for (int w = 1; w < p->n; w++) {
        p->workers[w] = (struct Worker){.pool = p, .index = w};
        if (fault_hit(FAULT_DRIVER) ||
            pthread_create(&p->workers[w].thread, NULL, worker_main, &p->workers[w]))
            return false;
        p->started = w;
    }
    return true;
}

Status pool_open(int threads, Pool **out) {
    char from[64];
    *out = NULL;
    if (threads < 1 || threads > 4096)
        return status_make(EXIT_REQUEST, "--threads %d: must be between 1 and 4096", threads);
    Pool *p = mem_aligned(64, sizeof *p);
    if (!p)
        return status_memory("thread pool", sizeof *p);
    *p = (Pool){.n = threads, .spins = threads <= system_threads(from) ? 4000 : 0};
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->done, NULL);
    p->share = mem_aligned(64, (size_t)threads * sizeof *p->share);
    p->workers = mem_alloc((size_t)threads * sizeof *p->workers);
    if (!p->share || !p->workers) {
        pool_close(p);
        return status_memory("thread pool", (size_t)threads * sizeof *p->share);
    }
    for (int w = 0; w < threads; w++) {
        atomic_init(&p->share[w].next, 0);
        p->share[w].end = 0;
    }
    if (!pool_start(p)) {
        pool_close(p);
        return status_make(EXIT_WORK, "cannot start %d threads: the system refuses more (try --threads)",
                           threads);
    }
    *out = p;
    return STATUS_OK;
}
