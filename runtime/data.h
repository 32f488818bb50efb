// Training data: rows of ids cut into windows of seq+1, read in an order that seed and epoch alone decide.
//
// A file of n ids gives floor((n-1)/seq) windows: window w holds ids [w*seq, w*seq+seq], so each id but the
// first is a target once an epoch. All texts of one source form one row of ids, each document followed by the
// end token; they are tokenised when opened and kept in memory. Token files are read by position, each id
// checked against the vocabulary before it is handed out. A place in the data is one number, the cursor:
// windows taken since the start.
#ifndef DEPTHBENCH_RUNTIME_DATA_H
#define DEPTHBENCH_RUNTIME_DATA_H
#include "runtime/text.h"
#include "runtime/tokenizer.h"

typedef struct DataOptions {
    const char *const *paths; // files or folders of files
    int n_paths;
    Tokenizer *tokenizer; // NULL: token files only
    int64_t vocab;        // of the model; ids must be smaller
    int64_t seq;
    uint64_t seed;
    int64_t eos;     // -1: the tokenizer's
    int token_width; // bytes of an id in raw files; 0: found as the formats page says
    TextOptions text;
    bool literal_specials;
    bool whole; // held-out data: in file order, once, the last window padded with targets of -1
    // Long readings report here (may be NULL).
    void (*progress)(void *ctx, const char *path, int64_t ids);
    void (*warn)(void *ctx, const char *text);
    void *ctx;
} DataOptions;

typedef struct DataInfo {
    int files;
    int64_t documents; // of texts
    int64_t ids, windows, dropped;
    int64_t specials, replaced; // special tokens met in texts, invalid parts replaced
    int32_t top_id;             // most frequent id of a sample of at most a million
    double top_share;
} DataInfo;

typedef struct Data Data;
Status data_open(const DataOptions *o, Data **out) MUST_USE;
// Holds out a share of the windows, the same for every seed: *val reads them in order, *d no longer does.
// *val must be closed before *d.
Status data_split(Data *d, double fraction, Data **val) MUST_USE;
void data_close(Data *d);
DataInfo data_info(const Data *d);
// Windows [cursor, cursor+n) of the run: ids and targets [n, seq]. Epochs follow each other, each in an order
// of its own. Held-out data has no second epoch: rows beyond its end have targets of -1 and ids of 0.
Status data_read(Data *d, int64_t cursor, int64_t n, int32_t *ids, int32_t *targets) MUST_USE;
// Hash of what the windows depend on (ids of texts; name-free size and samples of token files), 32 hex
// digits.
const char *data_hash(const Data *d);

// The counter-based permutation of [0, n) behind the order; any element alone, no table.
uint64_t permute_index(uint64_t key, uint64_t n, uint64_t i);
#endif
