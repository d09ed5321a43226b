// SPDX-License-Identifier: Apache-2.0
/* test_session.c - saving and loading of conversations when memory or the disk fails: the old file,
 * or the old conversation, stays whole.
 *
 * Path:     make unit; the rest of `lily chat` is tested from outside (tests/py/test_chat.py).
 * Owns:     a random model and a temporary folder.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "base/file.h"
#include "base/mem.h"
#include "cli/session.h"

#include "unit.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/lily-session-XXXXXX";
static char path[64];
static CliArgs args;
static Session session;

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]";

/* The conversation as text; free. */
static char *text_of(const Session *s) {
    char *text = NULL;
    assert_int_equal(lily_chat_json(s->chat, &text, NULL, NULL), LILY_OK);
    return text;
}

static void read_file(StrBuf *out) {
    Err err = {0};
    assert_int_equal(file_read_all(out, path, 1 << 20, &err), STATUS_OK);
}

static int n_files(void) {
    DIR *d = opendir(folder);
    assert_non_null(d);
    int n = -2; // "." and ".."
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void fill(Session *s, const char *text) {
    assert_int_equal(lily_chat_truncate(s->chat, 0, NULL), LILY_OK);
    assert_int_equal(lily_chat_add(s->chat, "system", "be short", LILY_TERMINATED, NULL), LILY_OK);
    assert_int_equal(lily_chat_add(s->chat, "user", text, LILY_TERMINATED, NULL), LILY_OK);
    strbuf_clear(&s->tools);
    strbuf_append(&s->tools, TOOLS, sizeof TOOLS - 1);
    assert_int_equal(lily_chat_set_tools(s->chat, TOOLS, sizeof TOOLS - 1, NULL), LILY_OK);
}

/* Makes the n-th allocation, or the n-th file access, fail. */
typedef void (*FailAfter)(int64_t after);

static void each_failure_of_a_save(FailAfter fail_after, Status kind) {
    Err err = {0};
    fill(&session, "the old one");
    assert_int_equal(session_save(&session, path, &err), STATUS_OK);
    StrBuf before = {0};
    read_file(&before);
    fill(&session, "the new one");
    int64_t after = 0;
    for (;; after++) {
        fail_after(after);
        Status status = session_save(&session, path, &err);
        fail_after(-1);
        StrBuf now = {0};
        read_file(&now);
        assert_int_equal(n_files(), 1);
        if (status == STATUS_OK) {
            assert_non_null(strstr(now.ptr, "the new one"));
            strbuf_fini(&now);
            break;
        }
        assert_int_equal(status, kind);
        assert_string_equal(now.ptr, before.ptr);
        strbuf_fini(&now);
    }
    assert_true(after >= 3);
    strbuf_fini(&before);
}

static void each_failure_of_a_load(FailAfter fail_after, Status kind, int64_t least) {
    Err err = {0};
    fill(&session, "the saved one");
    assert_int_equal(session_save(&session, path, &err), STATUS_OK);
    fill(&session, "the present one");
    char *before = text_of(&session);
    int64_t after = 0;
    for (;; after++) {
        fail_after(after);
        Status status = session_load(&session, path, &err);
        fail_after(-1);
        char *now = text_of(&session);
        assert_string_equal(session.tools.ptr, TOOLS);
        if (status == STATUS_OK) {
            assert_non_null(strstr(now, "the saved one"));
            assert_string_equal(session.system.ptr, "be short");
            lily_free(now);
            break;
        }
        assert_int_equal(status, kind);
        assert_string_equal(now, before);
        lily_free(now);
    }
    assert_true(after >= least);
    lily_free(before);
}

static void test_each_allocation_of_a_save_fails_once(void **state) {
    UNUSED(state);
    each_failure_of_a_save(mem_fail_after, STATUS_MEMORY);
}

static void test_each_write_of_a_save_fails_once(void **state) {
    UNUSED(state);
    each_failure_of_a_save(file_fail_after, STATUS_IO);
}

static void test_each_allocation_of_a_load_fails_once(void **state) {
    UNUSED(state);
    each_failure_of_a_load(mem_fail_after, STATUS_MEMORY, 20);
}

static void test_each_read_of_a_load_fails_once(void **state) {
    UNUSED(state);
    each_failure_of_a_load(file_fail_after, STATUS_IO, 1);
}

static int open_all(void **state) {
    UNUSED(state);
    Err err = {0};
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/chat.json", folder);
    args = (CliArgs){.model = "synth:tiny,layers=1",
                     .ctx = 256,
                     .threads = 1,
                     .seed = -1,
                     .top_k = -1,
                     .temp = NAN,
                     .top_p = NAN,
                     .min_p = NAN,
                     .repetition = NAN,
                     .presence = NAN,
                     .frequency = NAN};
    return session_open(&session, &args, &err) == STATUS_OK ? 0 : -1;
}

static int close_all(void **state) {
    UNUSED(state);
    session_close(&session);
    unlink(path);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_allocation_of_a_save_fails_once),
        cmocka_unit_test(test_each_write_of_a_save_fails_once),
        cmocka_unit_test(test_each_allocation_of_a_load_fails_once),
        cmocka_unit_test(test_each_read_of_a_load_fails_once),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
