// Places in scripts: which line called an op, and how a mistake is shown.
//
// A chunk is named by the number of its file in Module.files, so that Lua's own messages ("3:14: text") keep
// whole paths, and a place is found without looking at names.
#include "frontend/lua/script.h"
#include <stdlib.h>
#include <string.h>

// The two innermost Lua frames from `level` on (C frames between them, as an iterator's, are passed over).
// Allocates nothing: also called when memory has run out.
Loc loc_frame(lua_State *L, int level) {
    lua_Debug frame;
    Loc loc = {{0}, {0}};
    for (int found = 0; found < 2 && level < 16 && lua_getstack(L, level, &frame); level++) {
        lua_getinfo(L, "Sl", &frame);
        if (frame.currentline <= 0 || frame.source[0] != '=')
            continue;
        loc.file[found] = (uint8_t)atoi(frame.source + 1);
        loc.line[found] = (uint16_t)MIN_OF(frame.currentline, UINT16_MAX);
        found++;
    }
    return loc;
}

void loc_here(lua_State *L) {
    Script *s = script_of(L);
    s->b.loc = loc_frame(L, 1);
    s->b.layer = (int16_t)s->layer;
}

// The text of one line of a file, without its end; false when it cannot be read.
static bool source_line(const char *file, int line, char *out, size_t bytes) {
    FILE *f = fopen(file, "r");
    bool found = false;
    int at = 1;
    while (f && !found && fgets(out, (int)bytes, f)) {
        found = at == line;
        at += strchr(out, '\n') != NULL;
    }
    if (f)
        fclose(f);
    if (found)
        out[strcspn(out, "\r\n")] = 0;
    return found;
}

// What stands in the script for an op: its name, an operator, or the function that makes it.
static const char *spelling(const char *op) {
    static const char *const words[][2] = {{"add", " + "}, {"sub", " - "}, {"mul", " * "},     {"div", " / "},
                                           {"pow", " ^ "}, {"neg", "-"},   {"concat", "stack"}};
    for (size_t i = 0; i < COUNT_OF(words); i++)
        if (!strcmp(words[i][0], op))
            return words[i][1];
    return op;
}

// The one place of a word in the code of a line; NULL when there is none or more than one.
static const char *only_place(const char *line, const char *word) {
    const char *at = *word ? strstr(line, word) : NULL, *comment = strstr(line, "--");
    const char *second = at ? strstr(at + 1, word) : NULL;
    if (comment && at > comment)
        return NULL;
    return second && !(comment && second > comment) ? NULL : at;
}

static void show_line(Script *s, const char *file, int line, const char *word) {
    char text[256], indent[256];
    if (!source_line(file, line, text, sizeof text))
        return;
    const char *at = only_place(text, word);
    if (!at)
        at = only_place(text, spelling(word));
    size_t column = at ? (size_t)(at - text) + strspn(at, " ") : strspn(text, " \t");
    for (size_t i = 0; i < column; i++)
        indent[i] = text[i] == '\t' ? '\t' : ' '; // the caret stays under its word whatever a tab is
    text_add(&s->result->messages, "    %s\n    %.*s^\n", text, (int)column, indent);
}

// One mistake: the line, a caret, who called, what to do.
static void show(Script *s, Loc loc, const char *text, const char *word, const char *hint) {
    const Module *m = s->b.m;
    const char *file = loc.file[0] ? m->files.at[loc.file[0]] : s->options->path;
    text_add(&s->result->messages, "%s:%d: error: %s\n", file, MAX_OF(loc.line[0], 1), text);
    show_line(s, file, loc.line[0], word);
    if (loc.line[1])
        text_add(&s->result->messages, "%s:%d: called from here\n", m->files.at[loc.file[1]], loc.line[1]);
    if (*hint)
        text_add(&s->result->messages, "    hint: %s\n", hint);
}

void loc_messages(Script *s) {
    for (uint32_t i = 0; i < s->diags.list.n; i++) {
        const Diag *d = &s->diags.list.at[i];
        char word[32]; // the first word of a message is the op's name: the caret stands under it
        snprintf(word, sizeof word, "%.*s", (int)MIN_OF(strcspn(d->text, ": "), (size_t)31), d->text);
        show(s, d->loc, d->text, word, diag_hint(d->kind));
    }
    if (s->diags.dropped)
        text_add(&s->result->messages, "and %u more\n", s->diags.dropped);
}

// Lua's messages are "NUMBER:LINE: text"; anything else happened at `loc`.
void loc_message(Script *s, Loc loc, const char *text) {
    char *colon, *end;
    long file = strtol(text, &colon, 10);
    if (colon > text && *colon == ':' && file > 0 && file < (long)s->b.m->files.n) {
        long line = strtol(colon + 1, &end, 10);
        if (end > colon + 1 && *end == ':') {
            if (loc.file[0] != file || loc.line[0] != line)
                loc = (Loc){.file = {(uint8_t)file}, .line = {(uint16_t)MIN_OF(line, UINT16_MAX)}};
            text = end + 1 + strspn(end + 1, " ");
        }
    }
    show(s, loc, text, "", "");
}
