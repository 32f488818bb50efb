// Runs one row kernel, given as IR text, on the host target and on the evaluator, and compares.
//
// Arguments lie at the end of a mapping with a page behind it that nobody may touch, rows are `pad` elements
// apart, and what lies between them is not a number: reading or writing beyond a row shows.
#ifndef DEPTHBENCH_TESTS_KERNEL_CASE_H
#define DEPTHBENCH_TESTS_KERNEL_CASE_H
#include "runtime/host.h"

enum { KERNEL_MAX_ARGS = 32, KERNEL_STRIPS = 3 };

typedef struct KernelArray {
    Type type;
    void *at;
    size_t bytes; // mapped, the last page without access
    void *map;
    int64_t pitch; // elements between neighbouring rows
    int64_t count; // column sums: elements of a strip; else 0
    KernelArg arg;
} KernelArray;

typedef struct KernelCase {
    Arena arena;
    Module *m;
    Func *f;
    const char *text; // C
    int n_in, n_out;
    KernelArray array[KERNEL_MAX_ARGS]; // operands, then results
    float scalar[4];
    int64_t items;
    DriverState *driver;
    Plan plan;
    PlanKernel kernel;
} KernelCase;

// Parses, prints, compiles with `cc` (NULL: the system's) and fills the operands with random numbers.
void kernel_open(KernelCase *c, const char *ir, int64_t pad, const char *cc);
void kernel_close(KernelCase *c);
// Result `out` lies in the place of operand `in`, whose values are copied there.
void kernel_overlay(KernelCase *c, int out, int in);
void kernel_run(KernelCase *c, int strips);
// Values of the results against the evaluator: |got - want| <= f32 * largest |want| (bf16: one unit of bf16
// more).
void kernel_check(KernelCase *c, double f32);
double kernel_get(const KernelArray *a, int64_t row, int64_t i);
void kernel_set(KernelArray *a, int64_t row, int64_t i, double x);
#endif
