// Reader of safetensors files: see safetensors.h. All sizes come from the file and are checked without
// overflow before anything is allocated; tensors must cover the data bytes exactly, without holes or overlap.
#include "runtime/safetensors.h"
#include "runtime/json_in.h"
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint8_t bytes;
} dtypes[N_ST_DTYPES] = {
    [ST_F64] = {"F64", 8}, [ST_I64] = {"I64", 8},         [ST_U64] = {"U64", 8},
    [ST_F32] = {"F32", 4}, [ST_I32] = {"I32", 4},         [ST_U32] = {"U32", 4},
    [ST_F16] = {"F16", 2}, [ST_BF16] = {"BF16", 2},       [ST_I16] = {"I16", 2},
    [ST_U16] = {"U16", 2}, [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_F8_E5M2] = {"F8_E5M2", 1},
    [ST_I8] = {"I8", 1},   [ST_U8] = {"U8", 1},           [ST_BOOL] = {"BOOL", 1},
};

const char *st_dtype_name(StDtype dtype) {
    return dtypes[dtype].name;
}

size_t st_dtype_bytes(StDtype dtype) {
    return dtypes[dtype].bytes;
}

const char *st_shape_text(int32_t rank, const int64_t *shape, char out[160]) {
    size_t n = 1;
    out[0] = '[';
    for (int32_t i = 0; i < rank && n < 130; i++)
        n += (size_t)snprintf(out + n, 160 - n, "%s%lld", i ? "," : "", (long long)shape[i]);
    memcpy(out + n, "]", 2);
    return out;
}

struct StFile {
    File file;
    json_t *header;    // owns the names
    uint64_t data;     // offset of the first data byte
    StTensor *tensors; // by begin
    int32_t n;
    const StTensor **by_name;
};

static Status bad(const StFile *f, const char *tensor, const char *what) {
    return status_make(EXIT_REQUEST, "%s: tensor %.200s: %s", f->file.path, tensor, what);
}

static Status parse_shape(const StFile *f, StTensor *t, const json_t *shape) {
    if (!json_is_array(shape))
        return bad(f, t->name, "shape is not a list");
    if (json_array_size(shape) > ST_MAX_RANK)
        return bad(f, t->name, "more than 8 dimensions");
    t->rank = (int32_t)json_array_size(shape);
    size_t count = 1;
    for (int32_t i = 0; i < t->rank; i++) {
        const json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0)
            return bad(f, t->name, "a size in its shape is not a whole number of 0 or more");
        t->shape[i] = json_integer_value(size);
        if (!size_mul(count, (size_t)t->shape[i], &count) || count > INT64_MAX)
            return bad(f, t->name, "the product of its shape overflows");
    }
    t->count = (int64_t)count;
    return STATUS_OK;
}

static Status parse_tensor(const StFile *f, StTensor *t, const char *name, const json_t *entry,
                           uint64_t data_bytes) {
    t->name = name;
    if (!json_is_object(entry))
        return bad(f, name, "its entry is not an object");
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype)
        return bad(f, name, "dtype is missing or not a string");
    int d = 0;
    while (d < N_ST_DTYPES && strcmp(dtype, dtypes[d].name) != 0)
        d++;
    if (d == N_ST_DTYPES)
        return status_make(EXIT_REQUEST, "%s: tensor %.200s: dtype %.40s is not known", f->file.path, name,
                           dtype);
    t->dtype = (StDtype)d;
    TRY(parse_shape(f, t, json_object_get(entry, "shape")));
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0)
        return bad(f, name, "data_offsets are not two whole numbers of 0 or more");
    if (json_integer_value(end) < json_integer_value(begin))
        return bad(f, name, "data_offsets end before they begin");
    t->begin = (uint64_t)json_integer_value(begin);
    t->end = (uint64_t)json_integer_value(end);
    size_t bytes;
    char shape[160];
    if (!size_mul((size_t)t->count, dtypes[d].bytes, &bytes))
        return bad(f, name, "its size in bytes overflows");
    if (bytes != t->end - t->begin)
        return status_make(EXIT_REQUEST,
                           "%s: tensor %.200s: %s of %s needs %zu bytes, data_offsets give %llu",
                           f->file.path, name, st_shape_text(t->rank, t->shape, shape), dtype, bytes,
                           (unsigned long long)(t->end - t->begin));
    if (t->end > data_bytes)
        return status_make(EXIT_REQUEST,
                           "%s: tensor %.200s: ends at data byte %llu, the file holds %llu: cut short?",
                           f->file.path, name, (unsigned long long)t->end, (unsigned long long)data_bytes);
    return STATUS_OK;
}

static Status parse_metadata(const StFile *f, json_t *meta) {
    const char *key;
    json_t *value;
    if (!json_is_object(meta))
        return status_make(EXIT_REQUEST, "%s: __metadata__ is not an object", f->file.path);
    json_object_foreach(meta, key, value) {
        if (!json_is_string(value))
            return status_make(EXIT_REQUEST, "%s: __metadata__: the value of %.100s is not a string",
                               f->file.path, key);
    }
    return STATUS_OK;
}

static int compare_begin(const void *a, const void *b) {
    const StTensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static Status check_cover(const StFile *f, uint64_t data_bytes) {
    uint64_t at = 0;
    for (int32_t i = 0; i < f->n; i++) {
        const StTensor *t = &f->tensors[i];
        if (t->begin < at)
            return status_make(EXIT_REQUEST, "%s: tensors %.150s and %.150s overlap", f->file.path,
                               f->tensors[i - 1].name, t->name);
        if (t->begin > at)
            return status_make(EXIT_REQUEST, "%s: no tensor covers data bytes %llu to %llu (before %.150s)",
                               f->file.path, (unsigned long long)at, (unsigned long long)t->begin, t->name);
        at = t->end;
    }
    if (at != data_bytes)
        return status_make(EXIT_REQUEST, "%s: %llu bytes after the last tensor", f->file.path,
                           (unsigned long long)(data_bytes - at));
    return STATUS_OK;
}

static Status parse_header(StFile *f, uint64_t data_bytes) {
    size_t n = json_object_size(f->header);
    f->tensors = mem_alloc(n * sizeof *f->tensors);
    if (!f->tensors)
        return status_memory("a list of tensors", n * sizeof *f->tensors);
    const char *name;
    json_t *entry;
    json_object_foreach(f->header, name, entry) {
        if (strcmp(name, "__metadata__") == 0)
            TRY(parse_metadata(f, entry));
        else
            TRY(parse_tensor(f, &f->tensors[f->n++], name, entry, data_bytes));
    }
    if (f->n)
        qsort(f->tensors, (size_t)f->n, sizeof *f->tensors, compare_begin);
    return check_cover(f, data_bytes);
}

static Status read_header(StFile *f) {
    const char *path = f->file.path;
    uint8_t head[8];
    if (f->file.size < 8)
        return status_make(EXIT_REQUEST,
                           "%s: not a safetensors file: %llu bytes long, its length field alone has 8", path,
                           (unsigned long long)f->file.size);
    TRY(file_read_at(&f->file, 0, head, 8));
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | head[i];
    if (n > ST_MAX_HEADER)
        return status_make(EXIT_REQUEST,
                           "%s: header of %llu bytes, at most %d are allowed: not a safetensors file?", path,
                           (unsigned long long)n, ST_MAX_HEADER);
    if (n > f->file.size - 8)
        return status_make(EXIT_REQUEST, "%s: header of %llu bytes ends after the file (%llu bytes)", path,
                           (unsigned long long)n, (unsigned long long)f->file.size);
    char *text = mem_alloc((size_t)n + 1);
    if (!text)
        return status_memory("a safetensors header", (size_t)n);
    Status s = file_read_at(&f->file, 8, text, (size_t)n);
    size_t end = (size_t)n;
    while (end && text[end - 1] == ' ')
        end--;
    if (!s.code && (end < 2 || text[0] != '{' || text[end - 1] != '}'))
        s = status_make(EXIT_REQUEST, "%s: header is not one JSON object padded with spaces", path);
    if (!s.code)
        s = jin_parse(path, text, end, false, &f->header);
    mem_free(text);
    f->data = 8 + n;
    if (s.code)
        return s;
    return parse_header(f, f->file.size - f->data);
}

static int compare_name(const void *a, const void *b) {
    return strcmp((*(const StTensor *const *)a)->name, (*(const StTensor *const *)b)->name);
}

static Status sort_names(StFile *f) {
    f->by_name = mem_alloc((size_t)f->n * sizeof *f->by_name);
    if (!f->by_name)
        return status_memory("a list of tensors", (size_t)f->n * sizeof *f->by_name);
    for (int32_t i = 0; i < f->n; i++)
        f->by_name[i] = &f->tensors[i];
    if (f->n)
        qsort(f->by_name, (size_t)f->n, sizeof *f->by_name, compare_name);
    return STATUS_OK;
}

Status st_open(const char *path, StFile **out) {
    *out = NULL;
    StFile *f = mem_alloc(sizeof *f);
    if (!f)
        return status_memory("a safetensors reader", sizeof *f);
    f->file.fd = -1;
    Status s = file_open(path, &f->file);
    if (!s.code)
        s = read_header(f);
    if (!s.code)
        s = sort_names(f);
    if (s.code) {
        st_close(f);
        return s;
    }
    *out = f;
    return STATUS_OK;
}

void st_close(StFile *f) {
    if (!f)
        return;
    file_close(&f->file);
    json_decref(f->header);
    mem_free(f->tensors);
    mem_free(f->by_name);
    mem_free(f);
}

int32_t st_count(const StFile *f) {
    return f->n;
}

const StTensor *st_tensor(const StFile *f, int32_t i) {
    return &f->tensors[i];
}

int32_t st_find(const StFile *f, const char *name) {
    for (int32_t low = 0, high = f->n; low < high;) {
        int32_t mid = low + (high - low) / 2;
        int c = strcmp(name, f->by_name[mid]->name);
        if (c == 0)
            return (int32_t)(f->by_name[mid] - f->tensors);
        if (c < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return -1;
}

const char *st_metadata(const StFile *f, const char *key) {
    return json_string_value(json_object_get(json_object_get(f->header, "__metadata__"), key));
}

Status st_read(StFile *f, int32_t i, void *out) {
    const StTensor *t = &f->tensors[i];
    return file_read_at(&f->file, f->data + t->begin, out, (size_t)(t->end - t->begin));
}

// IEEE half to single; exact for every value.
static float half_value(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023, bits;
    if (e == 31) {
        bits = sign | 0x7f800000 | m << 13;
    } else if (e) {
        bits = sign | (e + 112) << 23 | m << 13;
    } else {
        float tiny = (float)m * 0x1p-24f;
        return sign ? -tiny : tiny;
    }
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

static void convert(StDtype dtype, const uint8_t *in, size_t n, float *out) {
    for (size_t i = 0; i < n; i++) {
        if (dtype == ST_F64) {
            double v;
            memcpy(&v, in + 8 * i, 8);
            out[i] = (float)v;
            continue;
        }
        uint16_t h;
        memcpy(&h, in + 2 * i, 2);
        uint32_t bits = (uint32_t)h << 16;
        if (dtype == ST_F16)
            out[i] = half_value(h);
        else
            memcpy(&out[i], &bits, 4);
    }
}

Status st_read_f32(StFile *f, int32_t i, float *out) {
    enum { CHUNK = 1 << 16 };
    const StTensor *t = &f->tensors[i];
    if (t->dtype == ST_F32)
        return st_read(f, i, out);
    if (t->dtype != ST_F64 && t->dtype != ST_F16 && t->dtype != ST_BF16)
        return status_make(EXIT_REQUEST, "%s: tensor %.200s: dtype %s where F32, F64, F16 or BF16 is needed",
                           f->file.path, t->name, dtypes[t->dtype].name);
    size_t width = dtypes[t->dtype].bytes;
    uint8_t *buffer = mem_alloc(CHUNK * width);
    if (!buffer)
        return status_memory("a read buffer", CHUNK * width);
    Status s = STATUS_OK;
    for (size_t at = 0, n; at < (size_t)t->count && !s.code; at += n) {
        n = MIN_OF((size_t)CHUNK, (size_t)t->count - at);
        s = file_read_at(&f->file, f->data + t->begin + at * width, buffer, n * width);
        if (!s.code)
            convert(t->dtype, buffer, n, out + at);
    }
    mem_free(buffer);
    return s;
}
