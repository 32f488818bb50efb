// gzip (several members), zstd (several frames, skippable ones, windows up to 128 MiB) and plain files as one
// stream of bytes: see text_source.h.
#include "runtime/text_source.h"
#include "runtime/file.h"
#include <zlib.h>
#include <zstd.h>

enum { INPUT = 1 << 18 };
typedef enum Packing { PACK_NONE, PACK_GZIP, PACK_ZSTD } Packing;

struct Source {
    File file;
    Packing packing;
    uint64_t read; // bytes of the file taken so far
    uint8_t *input;
    size_t in_at, in_n;
    bool inside; // of a member or frame
    z_stream z;
    bool z_open;
    ZSTD_DCtx *zstd;
};

static void *pack_alloc(void *unused, uInt items, uInt size) {
    (void)unused;
    return mem_alloc((size_t)items * size);
}

static void pack_free(void *unused, void *p) {
    (void)unused;
    mem_free(p);
}

static Status find_packing(Source *s) {
    const char *path = s->file.path;
    size_t got;
    uint8_t head[4] = {0};
    TRY(file_read_some(&s->file, 0, head, 4, &got));
    bool gz = file_has_suffix(path, ".gz"), zst = file_has_suffix(path, ".zst");
    if (gz && (head[0] != 0x1F || head[1] != 0x8B))
        return status_make(EXIT_REQUEST, "%s: the name says gzip, the content is not", path);
    // a zstd file may begin with a skippable frame, 0x184D2A5?
    bool frame = head[0] == 0x28 && head[1] == 0xB5 && head[2] == 0x2F && head[3] == 0xFD;
    bool skip = (head[0] & 0xF0) == 0x50 && head[1] == 0x2A && head[2] == 0x4D && head[3] == 0x18;
    if (zst && !frame && !skip)
        return status_make(EXIT_REQUEST, "%s: the name says zstd, the content is not", path);
    s->packing = gz ? PACK_GZIP : zst ? PACK_ZSTD : PACK_NONE;
    return STATUS_OK;
}

static Status prepare(Source *s) {
    if (s->packing == PACK_NONE)
        return STATUS_OK;
    s->input = mem_alloc(INPUT);
    if (!s->input)
        return status_memory("a read buffer", INPUT);
    if (s->packing == PACK_GZIP) {
        s->z.zalloc = pack_alloc;
        s->z.zfree = pack_free;
        if (inflateInit2(&s->z, 15 + 16) != Z_OK)
            return status_memory("unpacking gzip", 1 << 16);
        s->z_open = true;
        return STATUS_OK;
    }
    s->zstd = fault_hit(FAULT_ALLOC) ? NULL : ZSTD_createDCtx();
    if (!s->zstd || ZSTD_isError(ZSTD_DCtx_setParameter(s->zstd, ZSTD_d_windowLogMax, 27)))
        return status_memory("unpacking zstd", 1 << 17);
    return STATUS_OK;
}

Status source_open(const char *path, Source **out) {
    *out = NULL;
    Source *s = mem_alloc(sizeof *s);
    if (!s)
        return status_memory("a file reader", sizeof *s);
    s->file.fd = -1;
    Status status = file_open(path, &s->file);
    if (!status.code)
        status = find_packing(s);
    if (!status.code)
        status = prepare(s);
    if (status.code)
        source_close(s);
    else
        *out = s;
    return status;
}

void source_close(Source *s) {
    if (!s)
        return;
    file_close(&s->file);
    if (s->z_open)
        inflateEnd(&s->z);
    ZSTD_freeDCtx(s->zstd);
    mem_free(s->input);
    mem_free(s);
}

static Status damaged(const Source *s, const char *what) {
    return status_make(EXIT_REQUEST, "%s: byte %llu: the compressed stream %s", s->file.path,
                       (unsigned long long)(s->read - s->in_n + s->in_at), what);
}

static Status unzip(Source *s, uint8_t *out, size_t n, size_t *got) {
    if (!s->inside)
        inflateReset(&s->z);
    s->inside = true;
    s->z.next_in = s->input + s->in_at;
    s->z.avail_in = (uInt)(s->in_n - s->in_at);
    s->z.next_out = out;
    s->z.avail_out = (uInt)n;
    int r = inflate(&s->z, Z_NO_FLUSH);
    s->in_at = s->in_n - s->z.avail_in;
    *got = n - s->z.avail_out;
    if (r == Z_STREAM_END)
        s->inside = false;
    else if (r == Z_MEM_ERROR)
        return status_memory("unpacking gzip", 1 << 16);
    else if (r != Z_OK && r != Z_BUF_ERROR)
        return damaged(s, s->z.msg ? s->z.msg : "is damaged");
    return STATUS_OK;
}

static Status unzstd(Source *s, uint8_t *out, size_t n, size_t *got) {
    ZSTD_inBuffer in = {s->input, s->in_n, s->in_at};
    ZSTD_outBuffer to = {out, n, 0};
    size_t r = ZSTD_decompressStream(s->zstd, &to, &in);
    s->in_at = in.pos;
    *got = to.pos;
    if (ZSTD_isError(r))
        return damaged(s, ZSTD_getErrorName(r));
    s->inside = r != 0;
    return STATUS_OK;
}

Status source_read(Source *s, void *out, size_t n, size_t *got) {
    *got = 0;
    if (s->packing == PACK_NONE) {
        TRY(file_read_some(&s->file, s->read, out, n, got));
        s->read += *got;
        return STATUS_OK;
    }
    while (*got == 0) {
        bool ended = false;
        if (s->in_at == s->in_n) {
            s->in_at = 0;
            TRY(file_read_some(&s->file, s->read, s->input, INPUT, &s->in_n));
            s->read += s->in_n;
            ended = s->in_n == 0;
            if (ended && !s->inside)
                return STATUS_OK;
        }
        TRY(s->packing == PACK_GZIP ? unzip(s, out, n, got) : unzstd(s, out, n, got));
        if (ended && *got == 0 && s->inside)
            return damaged(s, "ends early");
    }
    return STATUS_OK;
}
