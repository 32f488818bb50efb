// Places in scripts: which line called an op, and how a mistake is shown.
#include "frontend/lua/script.h"
#include <stdlib.h>
#include <string.h>

static uint8_t file_number(Script *s, const char *name) {
    Module *m = s->b.m;
    for (uint32_t i = 1; i < m->files.n; i++)
        if (!strcmp(m->files.at[i], name))
            return (uint8_t)i;
    if (m->files.n == UINT8_MAX)
        return 0;
    vec_push(s->arena, &m->files, arena_string(s->arena, name));
    return (uint8_t)(m->files.n - 1);
}

// The two innermost Lua frames (C frames between them, as an iterator's, are passed over).
void loc_here(lua_State *L) {
    Script *s = script_of(L);
    lua_Debug frame;
    Loc loc = {{0}, {0}};
    const char *names[2] = {0};
    int found = 0;
    for (int level = 1; found < 2 && level < 12 && lua_getstack(L, level, &frame); level++) {
        lua_getinfo(L, "Sl", &frame);
        if (frame.currentline <= 0 || frame.source[0] != '@')
            continue;
        loc.line[found] = (uint16_t)MIN_OF(frame.currentline, UINT16_MAX);
        names[found] = frame.source + 1;
        found++;
    }
    for (int i = 0; i < found; i++) {
        const char *name = names[i];
        GUARD(L, s, loc.file[i] = file_number(s, name));
    }
    s->b.loc = loc;
    s->b.layer = (int16_t)s->layer;
}

// The text of one line of a file, without its end; false when it cannot be read.
static bool source_line(const char *file, int line, char *out, size_t bytes) {
    FILE *f = fopen(file, "r");
    bool found = false;
    for (int i = 1; f && fgets(out, (int)bytes, f) && !found; i++)
        found = i == line;
    if (f)
        fclose(f);
    if (found)
        out[strcspn(out, "\r\n")] = 0;
    return found;
}

static void show_line(Script *s, const char *file, int line, const char *word) {
    char text[256];
    if (!source_line(file, line, text, sizeof text))
        return;
    const char *at = word && *word ? strstr(text, word) : NULL;
    size_t column = at ? (size_t)(at - text) : strspn(text, " \t");
    text_add(&s->result->messages, "    %s\n    %*s^\n", text, (int)column, "");
}

// The first word of a message is the op's name: the caret stands under it.
static void message_word(const char *text, char out[32]) {
    size_t n = strcspn(text, ": ");
    snprintf(out, 32, "%.*s", (int)MIN_OF(n, (size_t)31), text);
}

void loc_messages(Script *s) {
    const Module *m = s->b.m;
    for (uint32_t i = 0; i < s->diags.list.n; i++) {
        const Diag *d = &s->diags.list.at[i];
        char word[32];
        const char *file = m->files.at[d->loc.file[0]];
        message_word(d->text, word);
        text_add(&s->result->messages, "%s:%d: error: %s\n", file, d->loc.line[0], d->text);
        show_line(s, file, d->loc.line[0], word);
        if (d->loc.line[1])
            text_add(&s->result->messages, "%s:%d: called from here\n", m->files.at[d->loc.file[1]],
                     d->loc.line[1]);
        if (*diag_hint(d->kind))
            text_add(&s->result->messages, "    hint: %s\n", diag_hint(d->kind));
    }
    if (s->diags.dropped)
        text_add(&s->result->messages, "and %u more\n", s->diags.dropped);
}

// Lua's own messages are "FILE:LINE: text"; the word error goes between.
void loc_message(Script *s, const char *text) {
    const char *at = text;
    int line = 0;
    char file[512] = "";
    while ((at = strchr(at, ':'))) {
        char *end;
        line = (int)strtol(at + 1, &end, 10);
        if (end > at + 1 && *end == ':') {
            snprintf(file, sizeof file, "%.*s", (int)(at - text), text);
            at = end + 1;
            break;
        }
        at++;
    }
    if (!at) {
        text_add(&s->result->messages, "%s:1: error: %s\n", s->options->path, text);
        return;
    }
    text_add(&s->result->messages, "%s:%d: error:%s\n", file, line, at);
    show_line(s, file, line, NULL);
}
