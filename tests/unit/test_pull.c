// SPDX-License-Identifier: Apache-2.0
/* test_pull.c - pull when memory or the disk fails, and hubs that would keep it busy for ever: a
 * clear error comes back, nothing leaks, and the next run ends whole.
 *
 * Path:     make unit; the program against misbehaving hubs is tests/py/test_pull.py.
 * Owns:     a hub of its own on 127.0.0.1 and a temporary folder.  Thread: the hub has its own. */
#define _DEFAULT_SOURCE // mkdtemp, unsetenv
#include "base/file.h"
#include "base/mem.h"
#include "cli/pull.h"
#include "cli/pull_http.h"
#include "cli/pull_part.h"
#include "unit.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <microhttpd.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_FILES = 3, MAX_BYTES = 40000 };

/* How the hub answers for a file. */
typedef enum Mood {
    GOOD,
    SHORT_AND_WHOLE_ONLY, // ignores ranges and always breaks off at the same byte
    OTHER_RANGE,          // 206 with other bytes than were asked for
    ROUND_AND_ROUND,      // redirects to itself
    TO_A_FILE,            // redirects to file:///
} Mood;

typedef struct HubFile {
    const char *path;
    size_t size;
    uint8_t bytes[MAX_BYTES];
} HubFile;

static struct MHD_Daemon *hub;
static HubFile hub_files[MAX_FILES];
static _Atomic int hub_mood, hub_requests, hub_ranges;
static char hub_url[64], folder[64];

/* ---- the hub ---- */

static enum MHD_Result reply(struct MHD_Connection *c, unsigned code, const void *bytes, size_t len,
                             const char *name, const char *value) {
    struct MHD_Response *r =
        MHD_create_response_from_buffer(len, (void *)bytes, MHD_RESPMEM_MUST_COPY);
    if (name)
        MHD_add_response_header(r, name, value);
    enum MHD_Result result = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return result;
}

static void hex(char *out, const uint8_t *digest, size_t n) {
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

/* File 0 has a git id, the others a SHA-256. */
static enum MHD_Result reply_listing(struct MHD_Connection *c) {
    char text[2048] = "[", hash[65];
    for (int i = 0; i < MAX_FILES; i++) {
        const HubFile *f = &hub_files[i];
        size_t n = strlen(text);
        uint8_t digest[SHA256_DIGEST_SIZE];
        if (i == 0) {
            struct sha1_ctx h;
            char head[64];
            int len = snprintf(head, sizeof head, "blob %zu", f->size) + 1;
            sha1_init(&h);
            sha1_update(&h, (size_t)len, (uint8_t *)head);
            sha1_update(&h, f->size, f->bytes);
            sha1_digest(&h, SHA1_DIGEST_SIZE, digest);
            hex(hash, digest, SHA1_DIGEST_SIZE);
            snprintf(text + n, sizeof text - n,
                     "{\"type\":\"file\",\"path\":\"%s\",\"size\":%zu,\"oid\":\"%s\"},", f->path,
                     f->size, hash);
        } else {
            struct sha256_ctx h;
            sha256_init(&h);
            sha256_update(&h, f->size, f->bytes);
            sha256_digest(&h, sizeof digest, digest);
            hex(hash, digest, sizeof digest);
            snprintf(text + n, sizeof text - n,
                     "{\"type\":\"file\",\"path\":\"%s\",\"size\":%zu,\"lfs\":{\"oid\":\"%s\"}},",
                     f->path, f->size, hash);
        }
    }
    text[strlen(text) - 1] = ']';
    return reply(c, 200, text, strlen(text), NULL, NULL);
}

/* A length that the body does not reach. */
static ssize_t break_off(void *ctx, uint64_t at, char *to, size_t max) {
    const HubFile *f = ctx;
    size_t n = f->size / 2;
    if (at >= n)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t len = n - (size_t)at < max ? n - (size_t)at : max;
    memcpy(to, f->bytes + at, len);
    return (ssize_t)len;
}

static enum MHD_Result reply_file(struct MHD_Connection *c, const HubFile *f) {
    const char *range = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Range");
    size_t from = range ? strtoul(range + strlen("bytes="), NULL, 10) : 0;
    atomic_fetch_add(&hub_ranges, range != NULL);
    char text[128];
    switch ((Mood)atomic_load(&hub_mood)) {
    case SHORT_AND_WHOLE_ONLY: {
        struct MHD_Response *r =
            MHD_create_response_from_callback(f->size, 4096, break_off, (void *)f, NULL);
        enum MHD_Result result = MHD_queue_response(c, 200, r);
        MHD_destroy_response(r);
        return result;
    }
    case OTHER_RANGE: from = range ? from + 1 : 0; break;
    case ROUND_AND_ROUND:
        snprintf(text, sizeof text, "/me/m/resolve/main/%s", f->path);
        return reply(c, 302, "", 0, "Location", text);
    case TO_A_FILE: return reply(c, 302, "", 0, "Location", "file:///etc/hostname");
    case GOOD: break;
    }
    if (!range)
        return reply(c, 200, f->bytes, f->size, NULL, NULL);
    snprintf(text, sizeof text, "bytes %zu-%zu/%zu", from, f->size - 1, f->size);
    return reply(c, 206, f->bytes + from, f->size - from, "Content-Range", text);
}

static enum MHD_Result answer(void *ctx, struct MHD_Connection *c, const char *url,
                              const char *method, const char *version, const char *body,
                              size_t *body_len, void **request) {
    UNUSED(ctx);
    UNUSED(method);
    UNUSED(version);
    UNUSED(body);
    UNUSED(body_len);
    UNUSED(request);
    atomic_fetch_add(&hub_requests, 1);
    if (strstr(url, "/api/models/"))
        return reply_listing(c);
    for (int i = 0; i < MAX_FILES; i++)
        if (strstr(url, hub_files[i].path))
            return reply_file(c, &hub_files[i]);
    return reply(c, 404, "", 0, NULL, NULL);
}

/* ---- a run ---- */

static Status pull_once(Err *err) {
    PullSource source = {.hub = hub_url, .stall_s = 5, .n_tries = 2, .pause_ms = 1};
    PullProgress progress = {0};
    PullList list = {0};
    Status status = pull_name(&list, "me/m", err);
    if (status == STATUS_OK)
        status = pull_list(&list, &source, err);
    if (status == STATUS_OK)
        status = pull_get(&list, &source, folder, 2, &progress, err);
    pull_list_fini(&list);
    return status;
}

static void drop_files(void) {
    for (int i = 0; i < 2 * MAX_FILES; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s%s", folder, hub_files[i / 2].path, i % 2 ? ".part" : "");
        unlink(path);
    }
}

/* Each file under its own name is right; returns how many there are. */
static int n_whole(void) {
    int n = 0;
    for (int i = 0; i < MAX_FILES; i++) {
        char *path = file_join(folder, hub_files[i].path);
        StrBuf text = {0};
        if (access(path, F_OK) == 0) {
            n++;
            assert_int_equal(file_read_regular(&text, path, MAX_BYTES, NULL), STATUS_OK);
            assert_int_equal(text.len, hub_files[i].size);
            assert_memory_equal(text.ptr, hub_files[i].bytes, text.len);
        }
        strbuf_fini(&text);
        mem_free(path);
    }
    return n;
}

/* Leaves a part of file i with n bytes; bad: other ones. */
static void leave_part(int i, size_t n, const char *ending, bool is_bad) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s%s", folder, hub_files[i].path, ending);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (size_t k = 0; k < n; k++)
        putc(hub_files[i].bytes[k] ^ (is_bad ? 1 : 0), f);
    assert_int_equal(fclose(f), 0);
}

static void assert_whole_run(void) {
    Err err = {0};
    if (pull_once(&err) != STATUS_OK)
        fail_msg("%s", err.text);
    assert_int_equal(n_whole(), MAX_FILES);
    DIR *d = opendir(folder);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    assert_int_equal(n, MAX_FILES);
}

/* ---- tests ---- */

/* One file is here, of one there is a part, one is not here at all. */
static void prepare(void) {
    drop_files();
    leave_part(0, hub_files[0].size, "", false);
    leave_part(1, 1000, ".part", false);
}

static void each_failure(void (*fail_after)(int64_t), Status kind, int least) {
    int n = 0, n_failed = 0;
    for (;; n++) {
        Err err = {0};
        prepare();
        fail_after(n);
        Status status = pull_once(&err);
        fail_after(-1);
        bool was_reached = status != STATUS_OK;
        (void)n_whole(); // what has its name is right
        if (status != STATUS_OK) {
            n_failed++;
            assert_true(err.text[0] && !strchr(err.text, '\n'));
            // libcurl tells some of its own failures by another name.
            if (status != kind)
                assert_int_equal(status, STATUS_IO);
        }
        if (n % 16 == 0 || status == STATUS_OK)
            assert_whole_run();
        if (!was_reached && n >= least)
            break;
        assert_true(n < 100000);
    }
    print_message("%d points, %d ended the run\n", n, n_failed);
    assert_true(n_failed > 5);
}

static void test_each_file_access_fails_once(void **state) {
    UNUSED(state);
    each_failure(file_fail_after, STATUS_IO, 0);
}

static void test_each_allocation_fails_once(void **state) {
    UNUSED(state);
    prepare();
    int64_t before = mem_count();
    assert_whole_run();
    each_failure(mem_fail_after, STATUS_MEMORY, (int)(mem_count() - before));
}

static void test_a_part_is_gone_on_with(void **state) {
    UNUSED(state);
    prepare();
    atomic_store(&hub_requests, 0);
    atomic_store(&hub_ranges, 0);
    assert_whole_run();
    assert_int_equal(hub_requests, 3); // the listing, a rest, a whole file
    assert_int_equal(hub_ranges, 1);
}

static void test_bytes_of_another_file_cost_one_more_transfer(void **state) {
    UNUSED(state);
    drop_files();
    leave_part(0, hub_files[0].size, "", true);      // right size, wrong bytes
    leave_part(1, 1000, ".part", true);              // shows at the end
    leave_part(2, hub_files[2].size, ".part", true); // shows before anything is asked for
    assert_whole_run();
    drop_files();
    leave_part(1, hub_files[1].size, "", false);
    leave_part(1, 5, "", false);                      // another size under the final name
    leave_part(2, hub_files[2].size, ".part", false); // whole, only its name is missing
    atomic_store(&hub_requests, 0);
    assert_whole_run();
    assert_int_equal(hub_requests, 3);
}

/* Bytes come with every attempt and no attempt gets further: that is no progress. */
static void test_the_same_break_again_and_again_ends_the_run(void **state) {
    UNUSED(state);
    Err err = {0};
    drop_files();
    atomic_store(&hub_mood, SHORT_AND_WHOLE_ONLY);
    assert_int_equal(pull_once(&err), STATUS_IO);
    assert_non_null(strstr(err.text, "given up after 3 attempts"));
    atomic_store(&hub_mood, GOOD);
    assert_whole_run();
}

static void test_other_bytes_than_asked_for_are_not_kept(void **state) {
    UNUSED(state);
    prepare();
    atomic_store(&hub_mood, OTHER_RANGE);
    assert_whole_run(); // begun anew without a range
    atomic_store(&hub_mood, GOOD);
}

static void test_redirects_to_nowhere_end_at_once(void **state) {
    UNUSED(state);
    Err err = {0};
    drop_files();
    for (int mood = ROUND_AND_ROUND; mood <= TO_A_FILE; mood++) {
        atomic_store(&hub_mood, mood);
        atomic_store(&hub_requests, 0);
        assert_int_equal(pull_once(&err), STATUS_IO);
        assert_true(hub_requests < 40);
        assert_int_equal(n_whole(), 0);
    }
    atomic_store(&hub_mood, GOOD);
}

static void test_one_run_a_folder(void **state) {
    UNUSED(state);
    Err err = {0};
    int lock;
    assert_int_equal(file_lock_open(&lock, folder, &err), STATUS_OK);
    assert_int_equal(pull_once(&err), STATUS_BUSY);
    file_lock_close(lock);
    assert_whole_run();
}

static void test_pauses_grow_and_obey_the_server(void **state) {
    UNUSED(state);
    PullSource s = {.pause_ms = 500};
    assert_int_equal(http_pause_ms(&s, 1, 0), 500);
    assert_int_equal(http_pause_ms(&s, 3, 0), 2000);
    assert_int_equal(http_pause_ms(&s, 60, 0), 30000);
    assert_int_equal(http_pause_ms(&s, 1, 7), 7000);
}

static int start(void **state) {
    UNUSED(state);
    Err err = {0};
    static const char *const paths[MAX_FILES] = {"config.json", "a.safetensors", "b.safetensors"};
    static const size_t sizes[MAX_FILES] = {300, MAX_BYTES, 20000};
    for (int i = 0; i < MAX_FILES; i++) {
        hub_files[i].path = paths[i];
        hub_files[i].size = sizes[i];
        for (size_t k = 0; k < sizes[i]; k++)
            hub_files[i].bytes[k] = (uint8_t)(k * k + (size_t)i);
    }
    signal(SIGPIPE, SIG_IGN);
    unsetenv("http_proxy"); // the hub is on this machine
    unsetenv("all_proxy");
    unsetenv("ALL_PROXY");
    // Hundreds of flushes: in memory where that can be had.
    snprintf(folder, sizeof folder, "%s/lily-test-pull-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    hub = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD, 0, NULL, NULL, answer, NULL,
                           MHD_OPTION_SOCK_ADDR, &here, MHD_OPTION_END);
    if (!hub || !mkdtemp(folder) || pull_start(&err) != STATUS_OK)
        return -1;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(hub, MHD_DAEMON_INFO_BIND_PORT);
    snprintf(hub_url, sizeof hub_url, "http://127.0.0.1:%u", info->port);
    return 0;
}

static int stop(void **state) {
    UNUSED(state);
    drop_files();
    pull_stop();
    MHD_stop_daemon(hub);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_part_is_gone_on_with),
        cmocka_unit_test(test_bytes_of_another_file_cost_one_more_transfer),
        cmocka_unit_test(test_the_same_break_again_and_again_ends_the_run),
        cmocka_unit_test(test_other_bytes_than_asked_for_are_not_kept),
        cmocka_unit_test(test_redirects_to_nowhere_end_at_once),
        cmocka_unit_test(test_one_run_a_folder),
        cmocka_unit_test(test_pauses_grow_and_obey_the_server),
        cmocka_unit_test(test_each_file_access_fails_once),
        cmocka_unit_test(test_each_allocation_fails_once),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
