// SPDX-License-Identifier: Apache-2.0
/* auth.c - who may ask.
 *
 * Owns:     an Auth owns its keys' digests.  Thread: read-only once open: any. */
#define _POSIX_C_SOURCE 200809L // strncasecmp
#include "server/auth.h"

#include "base/file.h"
#include "base/mem.h"

#include <strings.h>

enum { AUTH_FILE_BYTES = 1 << 20, AUTH_KEYS = 4096, AUTH_KEY_BYTES = 512 };

static StrView auth_trim(StrView s) {
    while (s.len && (s.ptr[0] == ' ' || s.ptr[0] == '\t'))
        s = str_view(s.ptr + 1, s.len - 1);
    while (s.len && strchr(" \t\r\n", s.ptr[s.len - 1]))
        s.len--;
    return s;
}

static Status auth_read(Auth *a, StrView text, const char *path, Err *err) {
    a->digests = mem_zalloc(AUTH_KEYS, sizeof *a->digests);
    if (!a->digests)
        return err_memory(err, "API keys", AUTH_KEYS * sizeof *a->digests);
    for (size_t off = 0, line = 1; off < text.len; line++) {
        const char *end = memchr(text.ptr + off, '\n', text.len - off);
        size_t len = end ? (size_t)(end - text.ptr) - off : text.len - off;
        StrView key = auth_trim(str_view(text.ptr + off, len));
        off += len + 1;
        if (key.len == 0 || key.ptr[0] == '#')
            continue;
        if (key.len > AUTH_KEY_BYTES)
            return err_set(err, STATUS_FORMAT, "%s: line %zu: expected at most %d bytes", path,
                           line, AUTH_KEY_BYTES);
        if (a->n_keys == AUTH_KEYS)
            return err_set(err, STATUS_TOO_LARGE, "%s: more than %d keys", path, AUTH_KEYS);
        sha256_text(key.ptr, key.len, a->digests[a->n_keys++]);
    }
    if (a->n_keys == 0)
        return err_set(err, STATUS_FORMAT, "%s: expected one key a line, found none", path);
    return STATUS_OK;
}

Status auth_open(Auth *out, const char *path, Err *err) {
    Auth a = {0};
    StrBuf text = {0};
    if (path) {
        TRY(file_read_all(&text, path, AUTH_FILE_BYTES, err));
        Status status = auth_read(&a, strbuf_view(&text), path, err);
        strbuf_fini(&text);
        if (status != STATUS_OK) {
            auth_close(&a);
            return status;
        }
    }
    *out = a;
    return STATUS_OK;
}

void auth_close(Auth *a) {
    mem_free(a->digests);
    *a = (Auth){0};
}

bool auth_check_key(const Auth *a, const char *authorization, uint64_t *space) {
    *space = 0;
    if (a->n_keys == 0)
        return true;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0)
        return false;
    StrView key = auth_trim(str_view(authorization + 7, strlen(authorization + 7)));
    char digest[SHA256_TEXT_SIZE];
    sha256_text(key.ptr, key.len, digest);
    uint32_t is_known = 0;
    for (size_t i = 0; i < a->n_keys; i++) {
        unsigned difference = 0;
        for (size_t j = 0; j < SHA256_TEXT_SIZE - 1; j++)
            difference |= (unsigned)(a->digests[i][j] ^ digest[j]);
        is_known |= difference == 0;
    }
    for (size_t j = 0; j < 16; j++) // the digest's first 8 bytes, never 0 but by chance
        *space =
            *space << 4 | (uint64_t)(digest[j] <= '9' ? digest[j] - '0' : digest[j] - 'a' + 10);
    return is_known;
}

/* "host:port" without its port; brackets of an IPv6 address stay. */
static StrView auth_host_name(const char *host) {
    size_t len = strlen(host);
    if (host[0] == '[') {
        const char *end = strchr(host, ']');
        return str_view(host, end ? (size_t)(end - host) + 1 : len);
    }
    return str_view(host, strcspn(host, ":"));
}

static bool auth_is_name(StrView s, const char *name) {
    return s.len == strlen(name) && strncasecmp(s.ptr, name, s.len) == 0;
}

/* Four numbers from 127.0.0.0/8: a name such as 127.example.org is none. */
static bool auth_is_loopback_v4(StrView s) {
    size_t n_dots = 0;
    for (size_t i = 0; i < s.len; i++) {
        n_dots += s.ptr[i] == '.';
        if (s.ptr[i] != '.' && (s.ptr[i] < '0' || s.ptr[i] > '9'))
            return false;
    }
    return n_dots == 3 && str_starts(s, STR("127."));
}

bool auth_check_host(const Auth *a, const char *host) {
    if (!a->is_local)
        return true;
    if (!host)
        return false;
    StrView name = auth_host_name(host);
    return auth_is_name(name, "localhost") || auth_is_name(name, "[::1]") ||
           auth_is_loopback_v4(name) || (a->host && auth_is_name(name, a->host));
}

bool auth_is_cors(const Auth *a, const char *origin) {
    if (!a->cors || !origin)
        return false;
    size_t len = strlen(origin);
    for (const char *p = a->cors; *p;) {
        p += strspn(p, ", ");
        size_t n = strcspn(p, ", ");
        if ((n == 1 && *p == '*') || (n == len && strncasecmp(p, origin, n) == 0))
            return true;
        p += n;
    }
    return false;
}

bool auth_check_origin(const Auth *a, const char *origin, const char *host) {
    if (!origin || !a->is_local || auth_is_cors(a, origin))
        return true;
    const char *name = strstr(origin, "://");
    return host && name && strcasecmp(name + 3, host) == 0;
}
