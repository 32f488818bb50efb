// doctor: what this machine has, where it was looked for, and what installs the rest. Missing parts are no
// failure.
#include "frontend/cli/cli.h"
#include "runtime/host.h"
#include <dlfcn.h>
#include <string.h>
#include <unistd.h>

static void line(const Options *o, const char *what, bool there, const char *detail) {
    human(o, "%-12s %-8s %s\n", what, there ? "ok" : "missing", detail);
    if (o->json)
        emit_json(json_pack("{s:s,s:s,s:b,s:s}", "event", "doctor", "what", what, "ok", (int)there, "detail",
                            json_text(detail)));
}

// CUDA is loaded at run time; libraries are named with the versions that are tried. They stay loaded: what
// they allocate while loading is theirs to the end.
static void library(const Options *o, const char *what, const char *const *names, const char *install) {
    char detail[512];
    for (; *names; names++) {
        void *handle = dlopen(*names, RTLD_LAZY | RTLD_LOCAL);
        if (handle) {
            snprintf(detail, sizeof detail, "%s", *names);
            line(o, what, true, detail);
            return;
        }
    }
    snprintf(detail, sizeof detail, "%s", install);
    line(o, what, false, detail);
}

static const char *cpu_features(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16") ? "AVX-512, bf16 products"
           : __builtin_cpu_supports("avx512f")  ? "AVX-512, no bf16 products (bf16 is emulated and slow)"
           : __builtin_cpu_supports("avx2")     ? "AVX2, no bf16 products (bf16 is emulated and slow)"
                                                : "SSE2";
#else
    return "not an x86 machine";
#endif
}

static Status machine(const Options *o, DriverState *state) {
    DeviceInfo info;
    char text[1024], size[2][32];
    TRY(driver_host.measure(state, &info));
    snprintf(text, sizeof text, "%s; %s", info.name, cpu_features());
    line(o, "processor", true, text);
    snprintf(text, sizeof text, "%d (from %s)", info.threads, info.threads_from);
    line(o, "threads", true, text);
    snprintf(text, sizeof text, "%s, %s free", bytes_text((double)info.memory_total, size[0]),
             bytes_text((double)info.memory_free, size[1]));
    line(o, "memory", true, text);
    snprintf(text, sizeof text, "f32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, copy %.1f GB/s (measured now)",
             info.peak_flops[DT_F32] / 1e9, info.peak_flops[DT_BF16] / 1e9, info.copy_bytes_per_s / 1e9);
    line(o, "speed", true, text);
    return STATUS_OK;
}

Status cmd_doctor(const Options *o) {
    if (o->args.n)
        return status_make(EXIT_REQUEST, "doctor takes no argument, got %s", o->args.at[0]);
    DriverOptions options;
    char cache[4200] = "", text[4300], models[4200];
    TRY(driver_options(o, &options, cache, sizeof cache));
    DriverState *state;
    TRY(driver_host.open(&options, &state));
    Compiler compiler;
    compiler_find(&compiler);
    snprintf(text, sizeof text, "%s%s",
             compiler.command[0] ? compiler.version
                                 : "kernels cannot be compiled; apt-get install gcc. Looked for ",
             compiler.command[0] ? "" : compiler.looked);
    line(o, "compiler", compiler.command[0] != 0, text);
    Status s = machine(o, state);
    driver_host.close(state);
    TRY(s);
    line(o, "cache", options.cache_dir != NULL,
         options.cache_dir ? cache : "off (no --cache, XDG_CACHE_HOME or HOME)");
    s = models_dir(models, sizeof models);
    line(o, "models", !s.code, s.code ? s.text : models);
    static const char *const cuda[] = {"libcuda.so.1", "libcuda.so", NULL};
    static const char *const nvrtc[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", NULL};
    static const char *const cublas[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so", NULL};
    static const char *const nccl[] = {"libnccl.so.2", "libnccl.so", NULL};
    library(o, "cuda driver", cuda,
            "libcuda.so.1 is not in the loader's path; it comes with the NVIDIA driver");
    library(o, "nvrtc", nvrtc, "libnvrtc.so.13, .12 not found; package cuda-nvrtc of the CUDA toolkit");
    library(o, "cublasLt", cublas, "libcublasLt.so.13, .12 not found; package libcublas of the CUDA toolkit");
    library(o, "nccl", nccl, "libnccl.so.2 not found; package libnccl2");
    human(o, "targets      host; cuda and sim are not built yet\n");
    return STATUS_OK;
}
