// The command line, from two tables: options.def and commands.def. Help, errors and suggestions come from the
// same rows.
#include "frontend/cli/cli.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef enum Kind { KIND_FLAG, KIND_COUNT, KIND_TEXT, KIND_LIST, KIND_INT, KIND_REAL, KIND_LATER } Kind;
typedef struct Row {
    const char *name;
    char letter;
    Kind kind;
    const char *arg, *commands, *help;
    size_t at, given; // offsets in Options
} Row;

// clang-format off
#define AT_FLAG(f)  offsetof(Options, f), 0
#define AT_COUNT(f) offsetof(Options, f), 0
#define AT_TEXT(f)  offsetof(Options, f), 0
#define AT_LIST(f)  offsetof(Options, f), 0
#define AT_INT(f)   offsetof(Options, f), offsetof(Options, f##_given)
#define AT_REAL(f)  offsetof(Options, f), offsetof(Options, f##_given)
#define AT_LATER(f) 0, 0
static const Row rows[] = {
#define OPT(field, name, letter, kind, arg, commands, help) {name, letter, KIND_##kind, arg, commands, help, AT_##kind(field)},
#include "frontend/cli/options.def"
};
static const struct { char letter; const char *name, *args, *summary, *example; } commands[] = {
#define COMMAND(letter, name, args, summary, example) {letter, #name, args, summary, example},
#include "frontend/cli/commands.def"
};
// clang-format on

static int find_command(const char *name) {
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        if (!strcmp(commands[i].name, name))
            return (int)i;
    return -1;
}

static void help_option(FILE *out, const Row *r) {
    char left[64];
    snprintf(left, sizeof left, "%s%c%s%s%s", r->letter ? "-" : "  ", r->letter ? r->letter : ' ',
             r->letter ? ", " : "  ", r->name, "");
    fprintf(out, "  %s %-*s %s%s\n", left, (int)MAX_OF(1, 40 - (int)strlen(left)), r->arg ? r->arg : "",
            r->help,
            r->kind == KIND_LATER  ? " (not built yet)"
            : r->kind == KIND_LIST ? " (repeatable)"
                                   : "");
}

void options_help(FILE *out, const char *command) {
    int c = command ? find_command(command) : -1;
    if (c < 0) {
        fprintf(out, "usage: depthbench COMMAND [MODEL|RUN] [options]\n\n"
                     "Trains and dissects language models of ten residual architectures, described in Lua,\n"
                     "compiled into fused kernels.\n\ncommands:\n");
        for (size_t i = 0; i < COUNT_OF(commands); i++)
            if (commands[i].letter)
                fprintf(out, "  %-9s %s\n            $ %s\n", commands[i].name, commands[i].summary,
                        commands[i].example);
        fprintf(out, "not built yet:");
        for (size_t i = 0; i < COUNT_OF(commands); i++)
            if (!commands[i].letter)
                fprintf(out, " %s", commands[i].name);
        fprintf(out, "\n\n`depthbench COMMAND -h` lists a command's options.\n");
        return;
    }
    fprintf(out, "usage: depthbench %s %s [options]\n\n%s\n\n    $ %s\n\noptions:\n", commands[c].name,
            commands[c].args, commands[c].summary, commands[c].example);
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (strchr(rows[i].commands, commands[c].letter))
            help_option(out, &rows[i]);
    if (strchr("ebt", commands[c].letter))
        fprintf(out,
                "\nFlops a token, forward (a multiply-add is 2; training is 3 times that; recomputation "
                "is not counted):\n"
                "  projections 2L(2d*H*hd + 2d*Hk*hd + 3d*ff)   attention 2L*H*hd*(seq+1)   head 2V*d\n"
                "  hyper-connections of n streams: 2L*d(3n + 2n(n+2) + 2n(n+1) + 2n), which is left out of\n"
                "  the share of the peak\n");
    fprintf(out,
            "\nExit codes: 0 done, 1 the work failed, 2 the request was wrong, 3 the target is not there, "
            "130/143 interrupted.\n");
}

static Status unknown_option(const char *word, char command) {
    const char *names[COUNT_OF(rows)];
    int n = 0;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (strchr(rows[i].commands, command))
            names[n++] = rows[i].name;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (!strcmp(rows[i].name, word))
            return status_make(
                EXIT_REQUEST, "option %s does not belong to this command; `depthbench COMMAND -h` lists them",
                word);
    const char *near = nearest_word(word, names, n);
    return status_make(EXIT_REQUEST, "unknown option %s%s%s%s", word, near ? "; did you mean " : "",
                       near ? near : "", near ? "?" : "; `depthbench COMMAND -h` lists them");
}

// Integers take the suffixes k, M, G (powers of 1000).
static bool parse_int(const char *text, int64_t *out) {
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    int64_t scale = *end == 'k' ? 1000 : *end == 'M' ? 1000000 : *end == 'G' ? 1000000000 : 1;
    if (end == text || errno || (scale > 1 ? end[1] : *end) || v > INT64_MAX / scale || v < INT64_MIN / scale)
        return false;
    *out = v * scale;
    return true;
}

static bool parse_real(const char *text, double *out) {
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || v != v)
        return false;
    *out = v;
    return true;
}

static Status store(Options *o, const Row *r, const char *value) {
    char *base = (char *)o;
    switch (r->kind) {
    case KIND_FLAG:
        *(bool *)(base + r->at) = true;
        break;
    case KIND_COUNT:
        ++*(int *)(base + r->at);
        break;
    case KIND_TEXT:
        *(const char **)(base + r->at) = value;
        break;
    case KIND_LIST: {
        List *l = (List *)(base + r->at);
        if (l->n == MAX_LIST)
            return status_make(EXIT_REQUEST, "%s: more than %d values", r->name, MAX_LIST);
        l->at[l->n++] = value;
        break;
    }
    case KIND_INT:
        if (!parse_int(value, (int64_t *)(base + r->at)))
            return status_make(EXIT_REQUEST, "%s: '%s' is not a whole number", r->name, value);
        if (*(int64_t *)(base + r->at) < 0)
            return status_make(EXIT_REQUEST, "%s: %s is negative", r->name, value);
        *(bool *)(base + r->given) = true;
        break;
    case KIND_REAL:
        if (!parse_real(value, (double *)(base + r->at)))
            return status_make(EXIT_REQUEST, "%s: '%s' is not a number", r->name, value);
        if (*(double *)(base + r->at) < 0)
            return status_make(EXIT_REQUEST, "%s: %s is negative", r->name, value);
        *(bool *)(base + r->given) = true;
        break;
    case KIND_LATER:
        return status_make(EXIT_REQUEST, "option %s is not built yet", r->name);
    }
    return STATUS_OK;
}

static const Row *find_row(const char *word, size_t n, char command) {
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const Row *r = &rows[i];
        bool same = n == 2 && word[1] != '-' ? r->letter == word[1]
                                             : strlen(r->name) == n && !strncmp(r->name, word, n);
        if (same && strchr(r->commands, command))
            return r;
    }
    return NULL;
}

static bool is_short_count(const char *word) {
    return word[0] == '-' && word[1] == 'v' && strspn(word + 1, "v") == strlen(word + 1);
}

static Status parse_word(int argc, char **argv, int *at, Options *o) {
    const char *word = argv[*at];
    if (is_short_count(word)) {
        o->verbose += (int)strlen(word) - 1;
        return STATUS_OK;
    }
    const char *equals = word[1] == '-' ? strchr(word, '=') : NULL;
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    const Row *r = find_row(word, n, o->command);
    if (!r) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)MIN_OF(n, sizeof name - 1), word);
        return unknown_option(name, o->command);
    }
    const char *value = equals ? equals + 1 : NULL;
    if (!r->arg) {
        if (value)
            return status_make(EXIT_REQUEST, "%s takes no value", r->name);
        return store(o, r, NULL);
    }
    if (!value) {
        if (r->kind == KIND_LATER)
            return store(o, r, NULL);
        if (*at + 1 >= argc)
            return status_make(EXIT_REQUEST, "%s needs a value: %s %s", r->name, r->name, r->arg);
        value = argv[++*at];
    }
    TRY(store(o, r, value));
    // --data and --val take the paths that follow, as shells expand patterns
    while (r->kind == KIND_LIST && strcmp(r->name, "--set") && *at + 1 < argc && argv[*at + 1][0] != '-')
        TRY(store(o, r, argv[++*at]));
    return STATUS_OK;
}

static Status unknown_command(const char *name) {
    const char *names[COUNT_OF(commands)];
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        names[i] = commands[i].name;
    const char *near = nearest_word(name, names, (int)COUNT_OF(commands));
    return status_make(EXIT_REQUEST, "unknown command %s%s%s%s", name, near ? "; did you mean " : "",
                       near ? near : "", near ? "?" : "; `depthbench -h` lists them");
}

Status options_parse(int argc, char **argv, Options *o) {
    memset(o, 0, sizeof *o);
    if (argc < 2)
        return STATUS_OK;
    for (int i = 1; i < argc; i++) // so that even an error of usage comes out as JSON
        o->json |= !strcmp(argv[i], "--json");
    const char *name = argv[1];
    if (!strcmp(name, "-h") || !strcmp(name, "--help") || !strcmp(name, "help")) {
        o->help = true;
        if (argc < 3 || argv[2][0] == '-')
            return STATUS_OK;
        o->command_name = name = argv[2];
    }
    int c = find_command(name);
    if (c < 0)
        return unknown_command(name);
    if (o->help && commands[c].letter)
        return STATUS_OK;
    if (!commands[c].letter)
        return status_make(EXIT_REQUEST, "command %s is not built yet", name);
    o->command = commands[c].letter;
    o->command_name = commands[c].name;
    for (int i = 2; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1]) {
            TRY(parse_word(argc, argv, &i, o));
        } else {
            if (o->args.n == MAX_LIST)
                return status_make(EXIT_REQUEST, "more than %d arguments", MAX_LIST);
            o->args.at[o->args.n++] = argv[i];
        }
    }
    return STATUS_OK;
}
