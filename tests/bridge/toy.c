/* A toy cache manager in C, checked through the `exec:` bridge: a block pool and block tables.
 *
 *     cc -O1 -o toy toy.c && pytest suites/ --impl exec:./toy
 *
 * One JSON object comes in per line, one goes out. The reader below knows as much JSON as the
 * protocol needs: it finds members and elements and skips the rest. Names of requests are kept
 * as they were written, quotes and escapes included, so nothing is ever unescaped.
 * With -DLEAK the last block of a request does not come back to the pool.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------ JSON, reading */

static const char *blank(const char *p) {
    while (isspace((unsigned char)*p)) p++;
    return p;
}

static const char *after_string(const char *p) {
    for (p++; *p && *p != '"'; p++)
        if (*p == '\\' && p[1]) p++;
    return *p ? p + 1 : p;
}

/* The first character behind a value. */
static const char *after(const char *p) {
    int depth = 0;
    for (p = blank(p); *p; ) {
        if (*p == '"') { p = after_string(p); if (!depth) return p; continue; }
        if (*p == '[' || *p == '{') depth++;
        else if (*p == ']' || *p == '}') { if (--depth == 0) return p + 1; if (depth < 0) return p; }
        else if (*p == ',' && !depth) return p;
        p++;
    }
    return p;
}

static const char *first(const char *array) {
    const char *p = blank(array);
    if (*p != '[') return NULL;
    p = blank(p + 1);
    return *p && *p != ']' ? p : NULL;
}

static const char *next(const char *value) {
    const char *p = blank(after(value));
    return *p == ',' ? blank(p + 1) : NULL;
}

/* Element `number` of an array, or NULL. */
static const char *element(const char *array, int number) {
    const char *p = first(array);
    while (p && number--) p = next(p);
    return p;
}

static int count(const char *array) {
    int number = 0;
    for (const char *p = first(array); p; p = next(p)) number++;
    return number;
}

/* The value of a member of an object, or NULL. */
static const char *member(const char *object, const char *name) {
    const char *p = blank(object);
    size_t length = strlen(name);
    if (*p != '{') return NULL;
    for (p = blank(p + 1); *p == '"'; p = blank(p + 1)) {
        const char *end = after_string(p);
        int found = (size_t)(end - p) == length + 2 && !strncmp(p + 1, name, length);
        p = blank(end);
        if (*p != ':') return NULL;
        if (found) return blank(p + 1);
        p = blank(after(p + 1));
        if (*p != ',') return NULL;
    }
    return NULL;
}

static int number(const char *value, int otherwise) {
    return value ? atoi(value) : otherwise;
}

/* A string as it is written, with its quotes. */
static char *written(const char *value) {
    if (!value || *value != '"') return strdup("\"\"");
    return strndup(value, (size_t)(after_string(value) - value));
}

/* -------------------------------------------------------------------------------- the manager */

typedef struct {
    char *name;
    int *table, blocks, length;
} Request;

static int num_blocks, block_size, num_free, num_live;
static int *pool;
static Request *live;

static Request *find(const char *name) {
    for (int i = 0; i < num_live; i++)
        if (!strcmp(live[i].name, name)) return &live[i];
    return NULL;
}

static void forget(Request *request) {
    free(request->name);
    free(request->table);
    *request = live[--num_live];
}

static void start(int blocks, int size) {
    while (num_live) forget(&live[num_live - 1]);
    num_blocks = num_free = blocks;
    block_size = size;
    pool = realloc(pool, sizeof *pool * (size_t)blocks);
    for (int i = 0; i < blocks; i++) pool[i] = blocks - 1 - i;
}

/* Slots for further tokens: all of them, or none and 0. */
static int grow(Request *request, int tokens) {
    int need = (request->length + tokens + block_size - 1) / block_size - request->blocks;
    if (need > num_free) return 0;
    request->table = realloc(request->table, sizeof(int) * (size_t)(request->blocks + need + 1));
    while (need-- > 0) request->table[request->blocks++] = pool[--num_free];
    request->length += tokens;
    return 1;
}

static Request *enter(const char *name) {
    live = realloc(live, sizeof *live * (size_t)(num_live + 1));
    live[num_live] = (Request){strdup(name), NULL, 0, 0};
    return &live[num_live++];
}

static void leave(Request *request) {
    int blocks = request->blocks;
#ifdef LEAK
    blocks--;
#endif
    for (int i = 0; i < blocks; i++) pool[num_free++] = request->table[i];
    forget(request);
}

/* -------------------------------------------------------------------------------- the protocol */

static void show_table(const Request *request) {
    putchar('[');
    for (int i = 0; i < request->blocks; i++) printf(i ? ",%d" : "%d", request->table[i]);
    putchar(']');
}

/* The answer to an operation that went well: a result, and the table if it may have changed. */
static void done(int id, const char *result, const Request *changed) {
    printf("{\"id\":%d,\"result\":%s", id, result);
    if (changed) {
        printf(",\"tables\":{%s:", changed->name);
        show_table(changed);
        putchar('}');
    }
    puts("}");
}

static void refuse(int id, const char *type, const char *text) {
    printf("{\"id\":%d,\"error\":{\"type\":\"%s\",\"text\":\"%s\"}}\n", id, type, text);
}

static void admit(int id, const char *name, const char *key) {
    const char *tokens = key ? member(key, "tokens") : NULL;
    if (find(name)) { refuse(id, "ValueError", "the request is live already"); return; }
    if (!tokens || !count(tokens)) { refuse(id, "ValueError", "expected a key with tokens"); return; }
    Request *request = enter(name);
    if (grow(request, count(tokens))) { done(id, "0", request); return; }
    forget(request);
    refuse(id, "OutOfBlocks", "OOM: too few blocks are free for this prompt");
}

static void append(int id, Request *request, const char *tokens) {
    if (grow(request, tokens ? count(tokens) : 0)) done(id, "null", request);
    else refuse(id, "OutOfBlocks", "OOM: no block is free");
}

static void operate(int id, const char *op, const char *args) {
    const char *second = element(args, 1);
    char *name = written(element(args, 0));
    Request *request = find(name);
    if (!strncmp(op, "\"admit\"", 7)) admit(id, name, second);
    else if (!request) refuse(id, "KeyError", "the request is not live");
    else if (!strncmp(op, "\"append\"", 8)) append(id, request, second);
    else if (!strncmp(op, "\"release\"", 9)) { leave(request); done(id, "null", NULL); }
    else if (!strncmp(op, "\"block_table\"", 13)) {
        printf("{\"id\":%d,\"result\":", id);
        show_table(request);
        puts("}");
    } else refuse(id, "NotImplementedError", "this toy has admit, append, block_table, release");
    free(name);
}

int main(void) {
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        int id = number(member(line, "id"), -1);
        const char *op = member(line, "op"), *args = member(line, "args");
        if (op && !strncmp(op, "\"hello\"", 7)) {
            printf("{\"id\":%d,\"contract\":1,\"name\":\"toy-c\",\"kind\":\"CacheManager\","
                   "\"declaration\":{\"capabilities\":[]}}\n", id);
        } else if (op && !strncmp(op, "\"new\"", 5)) {
            start(number(member(line, "num_blocks"), 1), number(member(line, "block_size"), 1));
            printf("{\"id\":%d,\"num_blocks\":%d,\"block_size\":%d}\n", id, num_blocks, block_size);
        } else if (op && args && num_blocks) operate(id, op, args);
        else refuse(id, "ProtocolError", "expected hello, new, or an operation with args");
        fflush(stdout);
    }
    free(line);
    return 0;
}
