// The words of the MATH column in double: what the evaluator means by them. The kernels' own versions, in
// float and for vectors, are in codegen/prelude_c.h.
#ifndef DEPTHBENCH_IR_MATH_WORDS_H
#define DEPTHBENCH_IR_MATH_WORDS_H
#include <math.h>

#define K(x)            (x)
#define EXP(x)          exp(x)
#define LOG(x)          log(x)
#define TANH(x)         tanh(x)
#define SIGMOID(x)      (1.0 / (1.0 + exp(-(x))))
#define SQRT(x)         sqrt(x)
#define RSQRT(x)        (1.0 / sqrt(x))
#define SIN(x)          sin(x)
#define COS(x)          cos(x)
#define FLOOR(x)        floor(x)
#define POW(x, y)       pow(x, y)
#define ABS(x)          fabs(x)
#define MIN(x, y)       ((x) < (y) ? (x) : (y))
#define MAX(x, y)       ((x) > (y) ? (x) : (y))
#define LT(x, y)        ((x) < (y) ? 1.0 : 0.0)
#define EQ(x, y)        ((x) == (y) ? 1.0 : 0.0)
#define SELECT(c, x, y) ((c) != 0 ? (x) : (y))
#endif
